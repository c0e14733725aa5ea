//! The project: its documents, examples, packages and neighbours.

mod budget;
mod installing;
mod integrations;
mod misuse;
mod project;
mod recipes;
mod releasing;
