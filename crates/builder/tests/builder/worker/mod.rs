//! The worker on real job servers, with a simulated cloud.

mod contract;
mod dib;
mod fixtures;
mod hostile;
mod killed;
mod leftovers;
mod rules;
mod space;
mod steps;
