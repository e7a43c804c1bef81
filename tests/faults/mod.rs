//! Deaths, stops and failures. All other members get an error that names the cause, and no worker hangs. A
//! fault that passes ends no job.

mod compare;
mod killed;
mod late;
mod late_stops;
mod passing;
mod relinks;
mod relinks_of_levels;
mod returning;
mod returns;
mod returns_again;
mod returns_alone;
mod returns_alone_of_levels;
mod returns_in_batches;
mod returns_of_levels;
mod returns_of_several;
mod returns_slim;
