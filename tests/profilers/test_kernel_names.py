"""Kernels are shown by what distinguishes them: template, operator, type. Names of traces of an H200."""

import pytest

from sglang_instrument.kernel_names import readable_name

MUL = (
    "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<at::native::"
    "BinaryFunctor<c10::BFloat16, c10::BFloat16, c10::BFloat16, "
    "at::native::binary_internal::MulFunctor<float> > >"
    "(at::TensorIteratorBase&)::{lambda(int)#1}>(int, at::native::gpu_kernel_impl_nocast<...>)"
)
COPY = (
    "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::Tensor"
    "IteratorBase&)::{lambda()#3}::operator()() const::{lambda(float)#1}, std::array<char*, 2ul>, 4>"
    "(int, std::array<char*, 2ul>)"
)
MEAN = (
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float, float, "
    "float, float>, unsigned int, float, 4, 4> >"
    "(at::native::ReduceOp<float, at::native::MeanOps<float>, 4, 4>)"
)
POW = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::(anonymous namespace)::"
    "pow_tensor_scalar_kernel_impl<float, float>(at::TensorIteratorBase&, float)::{lambda(float)#1}, "
    "std::array<char*, 2ul> >(int, std::array<char*, 2ul>)"
)
CAT = (
    "void at::native::(anonymous namespace)::CatArrayBatchedCopy<at::native::(anonymous namespace)::"
    "OpaqueType<2u>, unsigned int, 4, 64, 64>(at::native::(anonymous namespace)::OpaqueType<2u>*, int)"
)
FMHA = (
    "fmha_cutlassF_bf16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<cutlass::bfloat16_t, "
    "cutlass::arch::Sm80, true, 64, 64, 64, true, true>::Params)"
)
GATHER = "at::native::vectorized_gather_kernel<16, long>"
LONG = "sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize256x128x8_stage3_warpsize4x2x1_ffma_aligna4_alignc4"


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        (MUL, "elementwise_kernel: mul BFloat16"),
        (COPY, "unrolled_elementwise_kernel: direct_copy float"),
        (MEAN, "reduce_kernel: mean float"),
        (POW, "vectorized_elementwise_kernel: pow float"),
        (CAT, "at::native::CatArrayBatchedCopy<…>"),
        (FMHA, "fmha_cutlassF_bf16_aligned_64x64_rf_sm80"),
        (f"void {GATHER}(char*, char*)", GATHER),
        ("nvjet_sm90_tst_64x8_64x16_1x2_h_bz_TNT", "nvjet_sm90_tst_64x8_64x16_1x2_h_bz_TNT"),
        ("_fwd_grouped_kernel_stage1", "_fwd_grouped_kernel_stage1"),
        ("(anonymous)", "(anonymous)"),
        ("", ""),
    ],
)
def test_a_kernel_is_shown_by_what_distinguishes_it(name: str, shown: str) -> None:
    assert readable_name(name) == shown


def test_a_longer_name_keeps_both_ends() -> None:
    shown = readable_name(LONG)
    assert len(shown) == 64
    begin, end = shown.split("…")
    assert LONG.startswith(begin)
    assert LONG.endswith(end)
