//! Subscriptions beside a job that trains at a real hub, and to directories of versions.

mod directories;
mod job;
mod parts;
mod readers;
