//! SQL: the functions as an application meets them, next to every other surface.

mod sql;
mod sql_reference;
mod surfaces;
