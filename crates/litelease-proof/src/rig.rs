//! Real files and processes.
