//! The shared parts of the project's programs: their log, their end, and the model that they are given.

mod arguments;
mod config;
mod exit;
mod log;
mod model_source;

pub use arguments::{Unusable, parse, variables_in};
pub use exit::{WrongSetting, exit_code, print, say, succeeds};
pub use log::{LogFormat, log};
pub use model_source::ModelSource;
