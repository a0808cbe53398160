// Makes the component: `npm run build`.

import { componentize } from '@bytecodealliance/componentize-js';
import { writeFile } from 'node:fs/promises';

const { component } = await componentize({
  sourcePath: 'storage.js',
  witPath: 'wit',
  worldName: 'storage',
  // A storage reaches its database, and nothing else.
  disableFeatures: ['http', 'fetch-event'],
});
await writeFile('kv-js.wasm', component);
