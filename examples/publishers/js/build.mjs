// Makes the component: `npm run build`.

import { componentize } from '@bytecodealliance/componentize-js';
import { writeFile } from 'node:fs/promises';

const { component } = await componentize({
  sourcePath: 'publisher.js',
  witPath: 'wit',
  worldName: 'publisher',
  // `fetch` needs the feature `http`; this one would export a server as well.
  disableFeatures: ['fetch-event'],
});
await writeFile('http-js.wasm', component);
