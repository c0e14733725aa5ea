//! SQL: the functions as an application meets them, next to every other surface.

mod held_hosts;
mod holds;
mod sql;
mod sql_reference;
mod surfaces;
