// One call of the host as one transaction over a table of names and values: what it writes is written at its end, or not at all.

import { Transaction } from 'outhaul:adapter/sql@0.1.1';
import { failed, invalidConfiguration, text } from './outhaul.js';

// Names read at once.
const PAGE = 500;
// Milliseconds by the database's clock, which alone judges what is due.
const NOW = "SELECT CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)";
// What can get better by itself.
const PASSING = new Set(['unavailable', 'busy', 'timeout']);

/** The DDL. */
export const schema = (table) => `CREATE TABLE IF NOT EXISTS ${table} (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;\n`;

/** A statement whose parameters are texts; `columns` are the types of what it returns. */
export function statement(sql, parameters = [], columns = []) {
  return { sql, parameters: parameters.map((val) => ({ tag: 'text', val })), columns };
}

/** Runs `work`, and turns an error of the database that it throws into the failure of a call. */
export function told(what, work) {
  try {
    return work();
  } catch (error) {
    const { code, detail } = error.payload ?? {};
    // The code of a failure is no text.
    if (typeof code !== 'string') throw error;
    if (code === 'denied') throw invalidConfiguration(`\`database\`: ${detail}`);
    if (code === 'missing') throw failed('unavailable', `the table is not there: run \`outhaul schema --apply\` (${detail})`);
    throw failed(PASSING.has(code) ? 'unavailable' : `sql-${code}`, `${what}: ${detail}`);
  }
}

/** Runs `work(call)` as one transaction, committed if nothing is thrown. If something is, the host rolls it back. */
export function inTransaction(connection, table, what, work) {
  return told(what, () => {
    const [transaction, [rows]] = connection.begin([statement(NOW, [], ['integer'])]);
    const call = new Call(transaction, table, Number(rows.columns[0].val.values[0]));
    const result = work(call);
    Transaction.commit(transaction, call.statements());
    return result;
  });
}

class Call {
  #transaction;
  #table;
  // By name; null: deleted.
  #writes = new Map();

  constructor(transaction, table, now) {
    this.#transaction = transaction;
    this.#table = table;
    /** When it began, in milliseconds of the database's clock. */
    this.now = now;
  }

  /** [name, value] of what is below a prefix, behind the name `after`, as this call has written it, in the order of the names. */
  *range(prefix, after = '') {
    const select = `SELECT name, value FROM ${this.#table} WHERE name > ?1 AND name < ?2 ORDER BY name LIMIT ${PAGE}`;
    // `0` is the character behind `/`.
    let name = `${prefix}/${after}`;
    for (let count = PAGE; count === PAGE; ) {
      const [rows] = this.#transaction.execute([statement(select, [name, `${prefix}0`], ['text', 'text'])]);
      const [names, values] = rows.columns.map(({ val }) => val);
      count = names.ends.length;
      for (let index = 0; index < count; index += 1) {
        name = text(names, index);
        const value = this.#writes.has(name) ? this.#writes.get(name) : text(values, index);
        if (value !== null) yield [name, value];
      }
    }
  }

  /** A value, as this call has written it; null: none. */
  get(name) {
    if (this.#writes.has(name)) return this.#writes.get(name);
    const select = `SELECT value FROM ${this.#table} WHERE name = ?1`;
    const [rows] = this.#transaction.execute([statement(select, [name], ['text'])]);
    const [{ val: values }] = rows.columns;
    return values.ends.length > 0 ? text(values, 0) : null;
  }

  put(name, value) {
    this.#writes.set(name, value);
  }

  delete(name) {
    this.#writes.set(name, null);
  }

  /** What writes all that was put and deleted. */
  statements() {
    const upsert = `INSERT INTO ${this.#table} (name, value) VALUES (?1, ?2) ON CONFLICT (name) DO UPDATE SET value = excluded.value`;
    const remove = `DELETE FROM ${this.#table} WHERE name = ?1`;
    return Array.from(this.#writes, ([name, value]) => (value === null ? statement(remove, [name]) : statement(upsert, [name, value])));
  }
}
