// Only one of many may do the work: claim, work, renew, release.
//
//   npm install better-sqlite3
//   node examples/basic_claim.js [FILE]
//
// Run from the folder of the project, after `make build-ext`.

const Database = require("better-sqlite3");

const db = new Database(process.argv[2] ?? "app.sqlite3");
db.loadExtension("./target/release/liblitelease_ext");

const owner = `process-${process.pid}`;
// Integers are read as BigInt: a token may be too large for a JavaScript number.
const ask = (sql, ...values) => db.prepare(sql).pluck().safeIntegers().get(...values);

ask("SELECT litelease_bootstrap()");
const token = ask("SELECT litelease_claim('nightly-report', ?, 30000)", owner);
if (token === null) {
  console.log(ask("SELECT litelease_owner('nightly-report')"), "is already at it");
  process.exit();
}
console.log(`works under token ${token}`);

for (const page of [1, 2, 3]) {
  console.log("page", page);
  // Renew while there is work, and stop as soon as another owner has the name.
  const renew = "SELECT litelease_renew('nightly-report', ?, 30000, NULL, ?)";
  if (ask(renew, owner, token) === null) {
    console.log("lost the lease");
    process.exit();
  }
}

ask("SELECT litelease_release('nightly-report', ?, NULL, ?)", owner, token);
console.log("done");
