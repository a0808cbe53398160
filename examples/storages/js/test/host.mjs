// Stands in for the host: `npm test` runs the storage in Node, and what it imports from the host is this.

import { register } from 'node:module';

const HOST = {
  'outhaul:adapter/log@0.1.1': 'export function write() {}',
  'outhaul:adapter/sql@0.1.1':
    'export class Connection { static open() { return globalThis.database; } }' +
    'export class Transaction { static commit(transaction, statements) { return transaction.execute(statements); } }',
};

const hooks = `export async function resolve(specifier, context, next) {
  const source = ${JSON.stringify(HOST)}[specifier];
  if (source === undefined) return next(specifier, context);
  return { url: 'data:text/javascript,' + encodeURIComponent(source), shortCircuit: true };
}`;

register('data:text/javascript,' + encodeURIComponent(hooks));
