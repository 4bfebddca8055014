//! Functions compiled for the widest registers that the processor has.

/// Defines a function whose loops use AVX-512, or AVX2 and FMA, where the processor has them. The numbers are the same.
/// Functions that it calls are compiled likewise if they are inlined.
macro_rules! widest {
    ($(#[$attribute:meta])* $visible:vis fn $name:ident($($argument:ident: $type:ty),* $(,)?) $(-> $result:ty)? $body:block) => {
        $(#[$attribute])*
        #[allow(clippy::too_many_arguments, reason = "arrays side by side")]
        $visible fn $name($($argument: $type),*) $(-> $result)? {
            #[allow(clippy::too_many_arguments, reason = "as above")]
            #[inline(always)]
            fn plain($($argument: $type),*) $(-> $result)? $body

            #[cfg(target_arch = "x86_64")]
            {
                /// # Safety
                /// The processor has AVX2 and FMA.
                #[allow(clippy::too_many_arguments, reason = "as above")]
                #[target_feature(enable = "avx2,fma")]
                fn wide($($argument: $type),*) $(-> $result)? {
                    plain($($argument),*)
                }
                /// # Safety
                /// The processor has AVX-512 F, VL, DQ and BW.
                #[allow(clippy::too_many_arguments, reason = "as above")]
                #[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw")]
                fn widest($($argument: $type),*) $(-> $result)? {
                    plain($($argument),*)
                }
                if $crate::lanes::has_avx512() {
                    // SAFETY: `has_avx512` has found them.
                    return unsafe { widest($($argument),*) };
                }
                if $crate::lanes::has_fma() {
                    // SAFETY: `has_fma` has found AVX2 and FMA.
                    return unsafe { wide($($argument),*) };
                }
            }
            plain($($argument),*)
        }
    };
}

pub(crate) use widest;
