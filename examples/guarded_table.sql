-- A guarded table that refuses a stale writer: sqlite3 app.sqlite3 < examples/guarded_table.sql
.load ./target/release/liblitelease_ext
SELECT 'table ready', litelease_bootstrap();
CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, text, lease_token INTEGER);
SELECT 'guarded', litelease_guard('orders', 'order-writer', 'lease_token');

SELECT 'claim by a', litelease_claim('order-writer', 'a', 30000);
INSERT INTO orders (text, lease_token) VALUES ('by a', 1);

-- a is paused, and its lease is handed to b.
SELECT 'transfer to b', litelease_transfer('order-writer', 'a', 'b', 30000);
INSERT INTO orders (text, lease_token) VALUES ('by b', 2);

-- a wakes up. The table refuses its write:
INSERT INTO orders (text, lease_token) VALUES ('late, by a', 1);

SELECT 'stored', text, 'under token', -lease_token FROM orders;
SELECT 'release by b', litelease_release('order-writer', 'b');
