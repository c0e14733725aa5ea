//! The service: HTTP, the queue, the page, and the server in trouble.

mod access;
mod async_client;
mod client;
mod client_ca;
mod credentials;
mod hostile;
mod http;
mod items;
mod keep;
mod names;
mod one_hold;
mod page;
mod payloads;
mod place;
mod place_queues;
mod queueing;
mod serve;
mod server_faults;
mod ticks;
mod tls;
mod watching;
