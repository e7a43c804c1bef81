//! `phub-server topology`: this machine or another, and where a job's chunks would go, as text and
//! as a picture.
