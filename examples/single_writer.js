// Many processes write notes to one file, one at a time:
//
//   node single_writer.js write TEXT [FILE]    adds a note
//   node single_writer.js count [FILE]         prints how many there are
//   node single_writer.js hold SECONDS [FILE]  holds the lock while others time out
//
// They take turns with `SingleWriter` of Rust and Python and with `litelease write`: npm install better-sqlite3 fs-ext.
// Copy the class Lock. It polls, and does not queue: a call that waits for a lock would keep a thread of Node's pool, and the
// process could not end before it has got the lock.
'use strict';
const fs = require('node:fs');
const { setTimeout: pause } = require('node:timers/promises');
const Database = require('better-sqlite3');
const { flockSync } = require('fs-ext');

const { O_RDWR, O_NOFOLLOW, O_NONBLOCK, O_CREAT, O_EXCL } = fs.constants;

// The write lock of a database: on a file of its own, because SQLite's locks are on the database.
class Lock {
  constructor(database) {
    this.database = fs.realpathSync(database); // one file has one lock, whichever way its path is written
    this.path = `${this.database}.lock`;
  }

  // Waits for the lock, for at most so many milliseconds. Returns its release. The system releases it if the process dies.
  async acquire(timeout) {
    const deadline = performance.now() + timeout;
    for (let wait = 5; ; wait = Math.min(2 * wait, 50)) {
      const release = this.try();
      if (release) return release;
      const left = deadline - performance.now();
      if (left <= 0) throw new Error(`write lock timeout after ${timeout}ms; holder: ${this.holder()}`);
      await pause(Math.min(wait, left));
    }
  }

  // Takes the lock if it is free.
  try() {
    const file = this.open();
    try {
      flockSync(file, 'exnb');
    } catch (error) {
      fs.closeSync(file);
      if (error.code === 'EAGAIN') return null;
      throw error;
    }
    // Closing the file is not enough if a child was forked meanwhile: it has the file open, too.
    const release = () => { flockSync(file, 'un'); fs.closeSync(file); };
    const [ours, there] = [fs.fstatSync(file), fs.lstatSync(this.path, { throwIfNoEntry: false })];
    if (ours.ino !== there?.ino || ours.dev !== there.dev) {
      release(); // the file was removed meanwhile: a lock on it excludes no process
      return null;
    }
    fs.ftruncateSync(file);
    fs.writeSync(file, `pid:${process.pid} time:${new Date().toISOString().replace(/\.\d+/, '')}\n`, 0);
    return release;
  }

  // Opens the lock file. It is created for users who may write the database: others could keep all writers out. A link or a
  // FIFO at its path is refused, and never truncated.
  open() {
    const flags = O_RDWR | O_NOFOLLOW | O_NONBLOCK;
    let file;
    while (file === undefined) {
      try {
        file = fs.openSync(this.path, flags);
      } catch (error) {
        if (error.code !== 'ENOENT') throw error;
        file = this.create(flags | O_CREAT | O_EXCL);
      }
    }
    const found = fs.fstatSync(file);
    if (!found.isFile() || found.nlink > 1) {
      fs.closeSync(file);
      throw new Error(`${this.path} cannot be a lock file: it is no ordinary file with one name`);
    }
    return file;
  }

  create(flags) {
    const database = fs.statSync(this.database);
    const write = database.mode & 0o222;
    try {
      const file = fs.openSync(this.path, flags, 0o600);
      try { fs.fchownSync(file, process.geteuid() ? -1 : database.uid, database.gid); } catch { /* not in that group */ }
      fs.fchmodSync(file, 0o600 | write | (write << 1));
      return file;
    } catch (error) {
      if (error.code !== 'EEXIST') throw error;
    }
  }

  // Names the process that has the lock. The line in the file may be an earlier holder's, so the kernel is asked, too.
  holder() {
    const [, pid, since] = /^pid:(\d+) time:(\S{20})\n/.exec(fs.readFileSync(this.path, 'utf8')) ?? [];
    const inode = fs.statSync(this.path).ino;
    const locks = fs.existsSync('/proc/locks') ? fs.readFileSync('/proc/locks', 'utf8') : '';
    const locker = new RegExp(`^\\d+: FLOCK .* (\\d+) \\S+:${inode} `, 'm').exec(locks)?.[1];
    if (pid && (pid === locker || (!locker && isRunning(Number(pid))))) {
      return `pid:${pid} since ${since}; try again or check if holder process is stuck`;
    }
    return locker
      ? `unknown, for it has not signed the lock file; the system names pid ${locker}; try again or check what that process does`
      : 'unknown; try again or check which process has the lock file open';
  }
}

function isRunning(pid) {
  try { process.kill(pid, 0); } catch (error) { return error.code !== 'ESRCH'; }
  return true;
}

async function write(path, work) {
  if (!fs.existsSync(path)) fs.closeSync(fs.openSync(path, 'a', 0o600));
  const release = await new Lock(path).acquire(500);
  const db = new Database(path, { timeout: 500 });
  try {
    db.pragma('journal_mode = WAL');
    db.pragma('synchronous = NORMAL');
    db.exec('BEGIN IMMEDIATE'); // a transaction that reads first could not wait for another writer's commit
    db.exec('CREATE TABLE IF NOT EXISTS notes (id INTEGER PRIMARY KEY, text TEXT)');
    await work(db);
    db.exec('COMMIT');
  } finally {
    db.close(); // which rolls back what was not committed
    release();
  }
}

async function main([verb, ...rest]) {
  const word = verb === 'count' ? '' : rest.shift();
  const path = rest[0] ?? 'notes.sqlite3';
  if (verb === 'count') {
    console.log(new Database(path).prepare('SELECT count(*) FROM notes').pluck().get());
  } else if (verb === 'write' && word) {
    await write(path, (db) => console.log('note', db.prepare('INSERT INTO notes (text) VALUES (?)').run(word).lastInsertRowid));
  } else if (verb === 'hold' && word) {
    await write(path, async () => {
      console.log('holding', new Lock(path).path);
      await pause(1000 * Number(word));
    });
  } else {
    throw new Error('usage: single_writer write TEXT [FILE] | count [FILE] | hold SECONDS [FILE]');
  }
}

main(process.argv.slice(2)).catch((error) => {
  console.error(`single_writer: ${error.message}`);
  process.exit(1);
});
