// Stands in for the host: `npm test` runs the publisher in Node, and what it imports from the host is this.

import { register } from 'node:module';

const HOST = {
  'outhaul:adapter/log@0.1.1': 'export function write() {}',
  'outhaul:adapter/progress@0.1.1': 'export function report(index, outcome) { globalThis.reports?.push([index, outcome.tag]); }',
};

const hooks = `export async function resolve(specifier, context, next) {
  const source = ${JSON.stringify(HOST)}[specifier];
  if (source === undefined) return next(specifier, context);
  return { url: 'data:text/javascript,' + encodeURIComponent(source), shortCircuit: true };
}`;

register('data:text/javascript,' + encodeURIComponent(hooks));
