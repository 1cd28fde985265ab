//! The pattern of all public options types.
//!
//! An options type is `#[non_exhaustive]`, so that a new field is not a breaking change. Callers start from `new` or
//! `Default`. The fields are public, and each has a setter of the same name for chaining. Result types are
//! `#[non_exhaustive]` as well, with public fields.

/// Declares setters: `name: T` accepts a `T`, and `name: into T` anything that converts into a `T`. With `some` before
/// either, the field is an `Option`.
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
