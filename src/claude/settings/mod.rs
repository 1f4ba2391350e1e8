//! How our hooks get into the user's settings, and out again without a trace.
//!
//! The user's files are the user's. A settings file is edited as text: what we add is inserted, what we added is cut
//! out, and every other byte (comments, trailing commas, BOM, line ends, indentation, order) stays as it was. So
//! *enable, then disable* gives back the identical file, and *enable* twice is *enable* once. A file that cannot be read as
//! JSON with comments is refused and stays untouched.
//!
//! **What is ours** is told by the entry itself: a command hook whose `args` are `hook`, `--data-dir DIR` and `--made …`. Only entries
//! whose `DIR` is the installation's own are touched, so that several installations live side by side in one file.
//!
//! **What disable may take away besides.** `enable` sometimes has to make room: an array for an event, the `hooks`
//! object, the root object of a blank file, the file itself. Nothing is recorded outside the file; the entries say
//! what was made for them: `--made entry[,event][,hooks][,root|,file]`. A container goes with the last entry in it if, and only
//! if, an entry of ours says that it was made for us, and nothing else stands in it, not even a comment. A second installation
//! takes over the marks of the first, so that the order of leaving does not matter. The user's own `"Stop": []`, `"hooks": {}`
//! or `{}` therefore survive, and a file that did not exist is removed if nobody wrote anything else into it.
//!
//! **Where insertions stand.** Always directly behind an opening bracket, followed by a comma if the container had
//! content. Everything between such an insertion and the next token is then the user's, and the cut needs no guess:
//! it runs from the white space before the entry (which is ours by construction) to its comma.
//!
//! Comments and trailing commas are kept because they are the user's, though 2.1.332 itself refuses such a file as a whole;
//! [`loads`] tells, so that `enable` and `doctor` can say so.
//!
//! The form is nested (`EVENT: [{hooks: [{type, command, args, timeout}]}]`): the flat form never runs. It is the exec form
//! (`args` present): no shell, so no quoting, on any system. Every entry has a timeout.

mod edit;
mod file;
mod jsonc;
mod spec;

pub use edit::{Edit, Installed, SettingsError, disable, enable, installed, loads};
pub use file::{Applied, FileError, Scope, apply};
pub use spec::{CliVersion, Spec, SpecError, events_known};

#[cfg(test)]
mod tests;
