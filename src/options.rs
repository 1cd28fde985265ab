//! How public options are constructed.
//!
//! Every options type is `#[non_exhaustive]`, so that a new field is never a breaking change. It starts from `new` or
//! `Default`, its fields are public, and each field has a setter of the same name that returns the options, for
//! chaining. Results are `#[non_exhaustive]`, too, and are read by their fields.

/// Declares setters: `name: T` takes a `T`, `name: into T` anything that converts into it, and `some` before either
/// sets an `Option`.
macro_rules! setters {
    () => {};
    ($name:ident: some into $type:ty; $($rest:tt)*) => {
        setters!(@fn $name, impl Into<$type>, Some($name.into()));
        setters!($($rest)*);
    };
    ($name:ident: some $type:ty; $($rest:tt)*) => {
        setters!(@fn $name, $type, Some($name));
        setters!($($rest)*);
    };
    ($name:ident: into $type:ty; $($rest:tt)*) => {
        setters!(@fn $name, impl Into<$type>, $name.into());
        setters!($($rest)*);
    };
    ($name:ident: $type:ty; $($rest:tt)*) => {
        setters!(@fn $name, $type, $name);
        setters!($($rest)*);
    };
    (@fn $name:ident, $argument:ty, $value:expr) => {
        #[doc = concat!("Sets [`", stringify!($name), "`](#structfield.", stringify!($name), ").")]
        #[must_use]
        pub fn $name(mut self, $name: $argument) -> Self {
            self.$name = $value;
            self
        }
    };
}
pub(crate) use setters;
