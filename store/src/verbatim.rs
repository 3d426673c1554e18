//! Values as they lie in the database, for who moves rows and does not read them.

use std::marker::PhantomData;

use redb::{TableDefinition, TypeName, Value};

use crate::tables::Spec;

/// The bytes of a `V`, neither read nor made: a checksum goes along as it is, also one that does not fit.
#[derive(Debug)]
pub(crate) struct Verbatim<V>(PhantomData<fn() -> V>);

impl<V: Value + 'static> Value for Verbatim<V> {
    type SelfType<'a> = &'a [u8];
    type AsBytes<'a> = &'a [u8];

    fn fixed_width() -> Option<usize> {
        V::fixed_width()
    }

    fn from_bytes<'a>(data: &'a [u8]) -> &'a [u8]
    where
        Self: 'a,
    {
        data
    }

    fn as_bytes<'a, 'b: 'a>(value: &'a &'b [u8]) -> &'a [u8] {
        value
    }

    fn type_name() -> TypeName {
        // The table is the same one: redb compares names.
        V::type_name()
    }
}

/// A table whose values are moved as they are.
pub(crate) fn definition<S: Spec>() -> TableDefinition<'static, S::K, Verbatim<S::V>> {
    TableDefinition::new(S::NAME)
}
