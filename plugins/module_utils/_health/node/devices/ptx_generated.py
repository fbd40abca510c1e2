# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Device code as PTX, which the driver compiles for its GPU. Generated from src/cuda by `make -C src/cuda`; do not edit."""

from __future__ import annotations

#: SHA-256 of each source in src/cuda, and what compiled it.
SOURCES = {
    "copy.cu": "abcc5f18b3a7a90f75a1685450032e08c3864ab89d25e9b5d063b8c9a92b1db5",
    "triad.cu": "d5e7e952db23d509ea72b51aef8d36665922a249037694cfab4aa163c8977e6b",
    "fp64.cu": "53766c6e60d16f45d0ab66f8bd4cf89fd1422d03aa74352d5958dc1dba78b622",
    "tensor.cu": "44aaeb9b8a3d87f44be34e6d5cc2bc2c831bde4c641640bc8f5ca73d41157097",
}
COMPILER = "nvcc 13.0.88, header lowered to PTX 6.3 and sm_70"

#: ``autopilot_copy(to, from, vectors)`` copies ``vectors`` times 16 bytes, one side being mapped host memory.
COPY = """\
.version 6.3
.target sm_70
.address_size 64
.visible .entry autopilot_copy(
    .param .u64 autopilot_copy_param_0,
    .param .u64 autopilot_copy_param_1,
    .param .u64 autopilot_copy_param_2
)
{
    .reg .pred  %p<3>;
    .reg .b32   %r<13>;
    .reg .b64   %rd<18>;
    ld.param.u64    %rd8, [autopilot_copy_param_0];
    ld.param.u64    %rd9, [autopilot_copy_param_1];
    ld.param.u64    %rd10, [autopilot_copy_param_2];
    mov.u32     %r1, %ntid.x;
    cvt.u64.u32     %rd1, %r1;
    mov.u32     %r2, %ctaid.x;
    mul.wide.u32    %rd11, %r2, %r1;
    mov.u32     %r3, %tid.x;
    cvt.u64.u32     %rd12, %r3;
    add.s64     %rd17, %rd11, %rd12;
    setp.ge.u64     %p1, %rd17, %rd10;
    @%p1 bra    $L__BB0_3;
    mov.u32     %r4, %nctaid.x;
    cvt.u64.u32     %rd13, %r4;
    mul.lo.s64  %rd3, %rd13, %rd1;
    cvta.to.global.u64  %rd4, %rd9;
    cvta.to.global.u64  %rd5, %rd8;
$L__BB0_2:
    shl.b64     %rd14, %rd17, 4;
    add.s64     %rd15, %rd4, %rd14;
    add.s64     %rd16, %rd5, %rd14;
    ld.global.nc.v4.u32     {%r5, %r6, %r7, %r8}, [%rd15];
    st.global.v4.u32    [%rd16], {%r5, %r6, %r7, %r8};
    add.s64     %rd17, %rd17, %rd3;
    setp.lt.u64     %p2, %rd17, %rd10;
    @%p2 bra    $L__BB0_2;
$L__BB0_3:
    ret;
}
"""

#: ``autopilot_fill(b, c, count)``, ``autopilot_triad(a, b, c, s, pairs)``: a = b + s * c, ``autopilot_count(a, s, count, wrong)``; of doubles.
TRIAD = """\
.version 6.3
.target sm_70
.address_size 64
.visible .entry autopilot_fill(
    .param .u64 autopilot_fill_param_0,
    .param .u64 autopilot_fill_param_1,
    .param .u64 autopilot_fill_param_2
)
{
    .reg .pred  %p<3>;
    .reg .b32   %r<5>;
    .reg .f64   %fd<3>;
    .reg .b64   %rd<32>;
    ld.param.u64    %rd8, [autopilot_fill_param_0];
    ld.param.u64    %rd9, [autopilot_fill_param_1];
    ld.param.u64    %rd10, [autopilot_fill_param_2];
    mov.u32     %r1, %ctaid.x;
    mov.u32     %r2, %ntid.x;
    cvt.u64.u32     %rd1, %r2;
    mul.wide.u32    %rd11, %r1, %r2;
    mov.u32     %r3, %tid.x;
    cvt.u64.u32     %rd12, %r3;
    add.s64     %rd31, %rd11, %rd12;
    setp.ge.u64     %p1, %rd31, %rd10;
    @%p1 bra    $L__BB0_3;
    mov.u32     %r4, %nctaid.x;
    cvt.u64.u32     %rd13, %r4;
    mul.lo.s64  %rd3, %rd13, %rd1;
    cvta.to.global.u64  %rd4, %rd8;
    cvta.to.global.u64  %rd5, %rd9;
$L__BB0_2:
    mul.hi.u64  %rd14, %rd31, 4223091239536077;
    sub.s64     %rd15, %rd31, %rd14;
    shr.u64     %rd16, %rd15, 1;
    add.s64     %rd17, %rd16, %rd14;
    shr.u64     %rd18, %rd17, 15;
    mul.lo.s64  %rd19, %rd18, 65521;
    sub.s64     %rd20, %rd31, %rd19;
    cvt.rn.f64.u64  %fd1, %rd20;
    shl.b64     %rd21, %rd31, 3;
    add.s64     %rd22, %rd4, %rd21;
    st.global.f64   [%rd22], %fd1;
    mul.hi.u64  %rd23, %rd31, 2252074725150721;
    sub.s64     %rd24, %rd31, %rd23;
    shr.u64     %rd25, %rd24, 1;
    add.s64     %rd26, %rd25, %rd23;
    shr.u64     %rd27, %rd26, 12;
    mul.lo.s64  %rd28, %rd27, 8191;
    sub.s64     %rd29, %rd31, %rd28;
    cvt.rn.f64.u64  %fd2, %rd29;
    add.s64     %rd30, %rd5, %rd21;
    st.global.f64   [%rd30], %fd2;
    add.s64     %rd31, %rd31, %rd3;
    setp.lt.u64     %p2, %rd31, %rd10;
    @%p2 bra    $L__BB0_2;
$L__BB0_3:
    ret;
}
.visible .entry autopilot_triad(
    .param .u64 autopilot_triad_param_0,
    .param .u64 autopilot_triad_param_1,
    .param .u64 autopilot_triad_param_2,
    .param .f64 autopilot_triad_param_3,
    .param .u64 autopilot_triad_param_4
)
{
    .reg .pred  %p<3>;
    .reg .b32   %r<5>;
    .reg .f64   %fd<12>;
    .reg .b64   %rd<21>;
    ld.param.u64    %rd9, [autopilot_triad_param_0];
    ld.param.u64    %rd10, [autopilot_triad_param_1];
    ld.param.u64    %rd11, [autopilot_triad_param_2];
    ld.param.f64    %fd1, [autopilot_triad_param_3];
    ld.param.u64    %rd12, [autopilot_triad_param_4];
    mov.u32     %r1, %ctaid.x;
    mov.u32     %r2, %ntid.x;
    cvt.u64.u32     %rd1, %r2;
    mul.wide.u32    %rd13, %r1, %r2;
    mov.u32     %r3, %tid.x;
    cvt.u64.u32     %rd14, %r3;
    add.s64     %rd20, %rd13, %rd14;
    setp.ge.u64     %p1, %rd20, %rd12;
    @%p1 bra    $L__BB1_3;
    mov.u32     %r4, %nctaid.x;
    cvt.u64.u32     %rd15, %r4;
    mul.lo.s64  %rd3, %rd15, %rd1;
    cvta.to.global.u64  %rd4, %rd10;
    cvta.to.global.u64  %rd5, %rd11;
    cvta.to.global.u64  %rd6, %rd9;
$L__BB1_2:
    shl.b64     %rd16, %rd20, 4;
    add.s64     %rd17, %rd4, %rd16;
    ld.global.nc.v2.f64     {%fd2, %fd3}, [%rd17];
    add.s64     %rd18, %rd5, %rd16;
    ld.global.nc.v2.f64     {%fd6, %fd7}, [%rd18];
    fma.rn.f64  %fd10, %fd7, %fd1, %fd3;
    fma.rn.f64  %fd11, %fd6, %fd1, %fd2;
    add.s64     %rd19, %rd6, %rd16;
    st.global.v2.f64    [%rd19], {%fd11, %fd10};
    add.s64     %rd20, %rd20, %rd3;
    setp.lt.u64     %p2, %rd20, %rd12;
    @%p2 bra    $L__BB1_2;
$L__BB1_3:
    ret;
}
.visible .entry autopilot_count(
    .param .u64 autopilot_count_param_0,
    .param .f64 autopilot_count_param_1,
    .param .u64 autopilot_count_param_2,
    .param .u64 autopilot_count_param_3
)
{
    .reg .pred  %p<5>;
    .reg .b32   %r<5>;
    .reg .f64   %fd<6>;
    .reg .b64   %rd<40>;
    ld.param.u64    %rd10, [autopilot_count_param_0];
    ld.param.f64    %fd1, [autopilot_count_param_1];
    ld.param.u64    %rd11, [autopilot_count_param_2];
    ld.param.u64    %rd12, [autopilot_count_param_3];
    mov.u32     %r1, %ctaid.x;
    mov.u32     %r2, %ntid.x;
    cvt.u64.u32     %rd1, %r2;
    mul.wide.u32    %rd14, %r1, %r2;
    mov.u32     %r3, %tid.x;
    cvt.u64.u32     %rd15, %r3;
    add.s64     %rd37, %rd14, %rd15;
    setp.ge.u64     %p1, %rd37, %rd11;
    mov.u64     %rd39, 0;
    @%p1 bra    $L__BB2_3;
    mov.u32     %r4, %nctaid.x;
    cvt.u64.u32     %rd17, %r4;
    mul.lo.s64  %rd3, %rd17, %rd1;
    cvta.to.global.u64  %rd4, %rd10;
    mov.u64     %rd39, 0;
$L__BB2_2:
    mul.hi.u64  %rd18, %rd37, 4223091239536077;
    sub.s64     %rd19, %rd37, %rd18;
    shr.u64     %rd20, %rd19, 1;
    add.s64     %rd21, %rd20, %rd18;
    shr.u64     %rd22, %rd21, 15;
    mul.lo.s64  %rd23, %rd22, 65521;
    sub.s64     %rd24, %rd37, %rd23;
    cvt.rn.f64.u64  %fd2, %rd24;
    mul.hi.u64  %rd25, %rd37, 2252074725150721;
    sub.s64     %rd26, %rd37, %rd25;
    shr.u64     %rd27, %rd26, 1;
    add.s64     %rd28, %rd27, %rd25;
    shr.u64     %rd29, %rd28, 12;
    mul.lo.s64  %rd30, %rd29, 8191;
    sub.s64     %rd31, %rd37, %rd30;
    cvt.rn.f64.u64  %fd3, %rd31;
    fma.rn.f64  %fd4, %fd3, %fd1, %fd2;
    shl.b64     %rd32, %rd37, 3;
    add.s64     %rd33, %rd4, %rd32;
    ld.global.nc.f64    %fd5, [%rd33];
    setp.neu.f64    %p2, %fd5, %fd4;
    selp.u64    %rd34, 1, 0, %p2;
    add.s64     %rd39, %rd39, %rd34;
    add.s64     %rd37, %rd37, %rd3;
    setp.lt.u64     %p3, %rd37, %rd11;
    @%p3 bra    $L__BB2_2;
$L__BB2_3:
    setp.eq.s64     %p4, %rd39, 0;
    @%p4 bra    $L__BB2_5;
    cvta.to.global.u64  %rd35, %rd12;
    atom.global.add.u64     %rd36, [%rd35], %rd39;
$L__BB2_5:
    ret;
}
"""

#: ``autopilot_fp64(ends, starts, k, steps)``: eight chains x = x * x - k a thread, from eight starts.
FP64 = """\
.version 6.3
.target sm_70
.address_size 64
.visible .entry autopilot_fp64(
    .param .u64 autopilot_fp64_param_0,
    .param .u64 autopilot_fp64_param_1,
    .param .f64 autopilot_fp64_param_2,
    .param .u64 autopilot_fp64_param_3
)
{
    .reg .pred  %p<6>;
    .reg .b32   %r<4>;
    .reg .f64   %fd<115>;
    .reg .b64   %rd<21>;
    ld.param.u64    %rd8, [autopilot_fp64_param_0];
    ld.param.u64    %rd10, [autopilot_fp64_param_1];
    ld.param.f64    %fd58, [autopilot_fp64_param_2];
    ld.param.u64    %rd9, [autopilot_fp64_param_3];
    cvta.to.global.u64  %rd11, %rd10;
    ld.global.nc.f64    %fd114, [%rd11];
    ld.global.nc.f64    %fd113, [%rd11+8];
    ld.global.nc.f64    %fd112, [%rd11+16];
    ld.global.nc.f64    %fd111, [%rd11+24];
    ld.global.nc.f64    %fd110, [%rd11+32];
    ld.global.nc.f64    %fd109, [%rd11+40];
    ld.global.nc.f64    %fd108, [%rd11+48];
    ld.global.nc.f64    %fd107, [%rd11+56];
    setp.eq.s64     %p1, %rd9, 0;
    @%p1 bra    $L__BB0_7;
    neg.f64     %fd9, %fd58;
    and.b64     %rd1, %rd9, 3;
    add.s64     %rd12, %rd9, -1;
    setp.lt.u64     %p2, %rd12, 3;
    @%p2 bra    $L__BB0_4;
    sub.s64     %rd19, %rd1, %rd9;
$L__BB0_3:
    .pragma "nounroll";
    fma.rn.f64  %fd59, %fd114, %fd114, %fd9;
    fma.rn.f64  %fd60, %fd59, %fd59, %fd9;
    fma.rn.f64  %fd61, %fd113, %fd113, %fd9;
    fma.rn.f64  %fd62, %fd61, %fd61, %fd9;
    fma.rn.f64  %fd63, %fd112, %fd112, %fd9;
    fma.rn.f64  %fd64, %fd63, %fd63, %fd9;
    fma.rn.f64  %fd65, %fd111, %fd111, %fd9;
    fma.rn.f64  %fd66, %fd65, %fd65, %fd9;
    fma.rn.f64  %fd67, %fd110, %fd110, %fd9;
    fma.rn.f64  %fd68, %fd67, %fd67, %fd9;
    fma.rn.f64  %fd69, %fd109, %fd109, %fd9;
    fma.rn.f64  %fd70, %fd69, %fd69, %fd9;
    fma.rn.f64  %fd71, %fd108, %fd108, %fd9;
    fma.rn.f64  %fd72, %fd71, %fd71, %fd9;
    fma.rn.f64  %fd73, %fd107, %fd107, %fd9;
    fma.rn.f64  %fd74, %fd73, %fd73, %fd9;
    fma.rn.f64  %fd75, %fd60, %fd60, %fd9;
    fma.rn.f64  %fd76, %fd62, %fd62, %fd9;
    fma.rn.f64  %fd77, %fd64, %fd64, %fd9;
    fma.rn.f64  %fd78, %fd66, %fd66, %fd9;
    fma.rn.f64  %fd79, %fd68, %fd68, %fd9;
    fma.rn.f64  %fd80, %fd70, %fd70, %fd9;
    fma.rn.f64  %fd81, %fd72, %fd72, %fd9;
    fma.rn.f64  %fd82, %fd74, %fd74, %fd9;
    fma.rn.f64  %fd114, %fd75, %fd75, %fd9;
    fma.rn.f64  %fd113, %fd76, %fd76, %fd9;
    fma.rn.f64  %fd112, %fd77, %fd77, %fd9;
    fma.rn.f64  %fd111, %fd78, %fd78, %fd9;
    fma.rn.f64  %fd110, %fd79, %fd79, %fd9;
    fma.rn.f64  %fd109, %fd80, %fd80, %fd9;
    fma.rn.f64  %fd108, %fd81, %fd81, %fd9;
    fma.rn.f64  %fd107, %fd82, %fd82, %fd9;
    add.s64     %rd19, %rd19, 4;
    setp.ne.s64     %p3, %rd19, 0;
    @%p3 bra    $L__BB0_3;
$L__BB0_4:
    setp.eq.s64     %p4, %rd1, 0;
    @%p4 bra    $L__BB0_7;
    neg.s64     %rd20, %rd1;
$L__BB0_6:
    .pragma "nounroll";
    fma.rn.f64  %fd114, %fd114, %fd114, %fd9;
    fma.rn.f64  %fd113, %fd113, %fd113, %fd9;
    fma.rn.f64  %fd112, %fd112, %fd112, %fd9;
    fma.rn.f64  %fd111, %fd111, %fd111, %fd9;
    fma.rn.f64  %fd110, %fd110, %fd110, %fd9;
    fma.rn.f64  %fd109, %fd109, %fd109, %fd9;
    fma.rn.f64  %fd108, %fd108, %fd108, %fd9;
    fma.rn.f64  %fd107, %fd107, %fd107, %fd9;
    add.s64     %rd20, %rd20, 1;
    setp.ne.s64     %p5, %rd20, 0;
    @%p5 bra    $L__BB0_6;
$L__BB0_7:
    mov.u32     %r1, %ctaid.x;
    mov.u32     %r2, %ntid.x;
    mul.wide.u32    %rd13, %r1, %r2;
    mov.u32     %r3, %tid.x;
    cvt.u64.u32     %rd14, %r3;
    add.s64     %rd15, %rd13, %rd14;
    cvta.to.global.u64  %rd16, %rd8;
    shl.b64     %rd17, %rd15, 6;
    add.s64     %rd18, %rd16, %rd17;
    st.global.f64   [%rd18], %fd114;
    st.global.f64   [%rd18+8], %fd113;
    st.global.f64   [%rd18+16], %fd112;
    st.global.f64   [%rd18+24], %fd111;
    st.global.f64   [%rd18+32], %fd110;
    st.global.f64   [%rd18+40], %fd109;
    st.global.f64   [%rd18+48], %fd108;
    st.global.f64   [%rd18+56], %fd107;
    ret;
}
"""

#: ``autopilot_tensor(sums, left, right, steps)``: four tiles of 16 x 16 floats a warp, each ``steps`` times left x right
TENSOR = """\
.version 6.3
.target sm_70
.address_size 64
.visible .entry autopilot_tensor(
    .param .u64 autopilot_tensor_param_0,
    .param .u64 autopilot_tensor_param_1,
    .param .u64 autopilot_tensor_param_2,
    .param .u64 autopilot_tensor_param_3
)
{
    .reg .pred  %p<6>;
    .reg .f32   %f<769>;
    .reg .b32   %r<404>;
    .reg .b64   %rd<32>;
    ld.param.u64    %rd10, [autopilot_tensor_param_1];
    ld.param.u64    %rd11, [autopilot_tensor_param_2];
    ld.param.u64    %rd9, [autopilot_tensor_param_3];
    wmma.load.a.sync.aligned.row.m16n16k16.f16 {%r41, %r42, %r43, %r44, %r45, %r46, %r47, %r48}, [%rd10], 16;
    wmma.load.b.sync.aligned.row.m16n16k16.f16 {%r49, %r50, %r51, %r52, %r53, %r54, %r55, %r56}, [%rd11], 16;
    add.s64     %rd12, %rd11, 512;
    wmma.load.b.sync.aligned.row.m16n16k16.f16 {%r57, %r58, %r59, %r60, %r61, %r62, %r63, %r64}, [%rd12], 16;
    add.s64     %rd13, %rd11, 1024;
    wmma.load.b.sync.aligned.row.m16n16k16.f16 {%r65, %r66, %r67, %r68, %r69, %r70, %r71, %r72}, [%rd13], 16;
    add.s64     %rd14, %rd11, 1536;
    wmma.load.b.sync.aligned.row.m16n16k16.f16 {%r73, %r74, %r75, %r76, %r77, %r78, %r79, %r80}, [%rd14], 16;
    setp.eq.s64     %p1, %rd9, 0;
    mov.f32     %f641, 0f00000000;
    mov.f32     %f642, %f641;
    mov.f32     %f643, %f641;
    mov.f32     %f644, %f641;
    mov.f32     %f645, %f641;
    mov.f32     %f646, %f641;
    mov.f32     %f647, %f641;
    mov.f32     %f648, %f641;
    mov.f32     %f649, %f641;
    mov.f32     %f650, %f641;
    mov.f32     %f651, %f641;
    mov.f32     %f652, %f641;
    mov.f32     %f653, %f641;
    mov.f32     %f654, %f641;
    mov.f32     %f655, %f641;
    mov.f32     %f656, %f641;
    mov.f32     %f657, %f641;
    mov.f32     %f658, %f641;
    mov.f32     %f659, %f641;
    mov.f32     %f660, %f641;
    mov.f32     %f661, %f641;
    mov.f32     %f662, %f641;
    mov.f32     %f663, %f641;
    mov.f32     %f664, %f641;
    mov.f32     %f665, %f641;
    mov.f32     %f666, %f641;
    mov.f32     %f667, %f641;
    mov.f32     %f668, %f641;
    mov.f32     %f669, %f641;
    mov.f32     %f670, %f641;
    mov.f32     %f671, %f641;
    mov.f32     %f672, %f641;
    @%p1 bra    $L__BB0_7;
    add.s64     %rd15, %rd9, -1;
    and.b64     %rd1, %rd9, 3;
    setp.lt.u64     %p2, %rd15, 3;
    mov.f32     %f641, 0f00000000;
    @%p2 bra    $L__BB0_4;
    sub.s64     %rd30, %rd9, %rd1;
    mov.f32     %f641, 0f00000000;
    mov.f32     %f642, %f641;
    mov.f32     %f643, %f641;
    mov.f32     %f644, %f641;
    mov.f32     %f645, %f641;
    mov.f32     %f646, %f641;
    mov.f32     %f647, %f641;
    mov.f32     %f648, %f641;
    mov.f32     %f649, %f641;
    mov.f32     %f650, %f641;
    mov.f32     %f651, %f641;
    mov.f32     %f652, %f641;
    mov.f32     %f653, %f641;
    mov.f32     %f654, %f641;
    mov.f32     %f655, %f641;
    mov.f32     %f656, %f641;
    mov.f32     %f657, %f641;
    mov.f32     %f658, %f641;
    mov.f32     %f659, %f641;
    mov.f32     %f660, %f641;
    mov.f32     %f661, %f641;
    mov.f32     %f662, %f641;
    mov.f32     %f663, %f641;
    mov.f32     %f664, %f641;
    mov.f32     %f665, %f641;
    mov.f32     %f666, %f641;
    mov.f32     %f667, %f641;
    mov.f32     %f668, %f641;
    mov.f32     %f669, %f641;
    mov.f32     %f670, %f641;
    mov.f32     %f671, %f641;
    mov.f32     %f672, %f641;
$L__BB0_3:
    wmma.mma.sync.aligned.row.row.m16n16k16.f32.f32 {%f672, %f671, %f670, %f669, %f668, %f667, %f666, %f665},
        {%r41, %r42, %r43, %r44, %r45, %r46, %r47, %r48},
        {%r49, %r50, %r51, %r52, %r53, %r54, %r55, %r56},
        {%f672, %f671, %f670, %f669, %f668, %f667, %f666, %f665};
    wmma.mma.sync.aligned.row.row.m16n16k16.f32.f32 {%f664, %f663, %f662, %f661, %f660, %f659, %f658, %f657},
        {%r41, %r42, %r43, %r44, %r45, %r46, %r47, %r48},
        {%r57, %r58, %r59, %r60, %r61, %r62, %r63, %r64},
        {%f664, %f663, %f662, %f661, %f660, %f659, %f658, %f657};
    wmma.mma.sync.aligned.row.row.m16n16k16.f32.f32 {%f656, %f655, %f654, %f653, %f652, %f651, %f650, %f649},
        {%r41, %r42, %r43, %r44, %r45, %r46, %r47, %r48},
        {%r65, %r66, %r67, %r68, %r69, %r70, %r71, %r72},
        {%f656, %f655, %f654, %f653, %f652, %f651, %f650, %f649};
    wmma.mma.sync.aligned.row.row.m16n16k16.f32.f32 {%f648, %f647, %f646, %f645, %f644, %f643, %f642, %f641},
        {%r41, %r42, %r43, %r44, %r45, %r46, %r47, %r48},
        {%r73, %r74, %r75, %r76, %r77, %r78, %r79, %r80},
        {%f648, %f647, %f646, %f645, %f644, %f643, %f642, %f641};
    wmma.mma.sync.aligned.row.row.m16n16k16.f32.f32 {%f672, %f671, %f670, %f669, %f668, %f667, %f666, %f665},
        {%r41, %r42, %r43, %r44, %r45, %r46, %r47, %r48},
        {%r49, %r50, %r51, %r52, %r53, %r54, %r55, %r56},
        {%f672, %f671, %f670, %f669, %f668, %f667, %f666, %f665};
    wmma.mma.sync.aligned.row.row.m16n16k16.f32.f32 {%f664, %f663, %f662, %f661, %f660, %f659, %f658, %f657},
        {%r41, %r42, %r43, %r44, %r45, %r46, %r47, %r48},
        {%r57, %r58, %r59, %r60, %r61, %r62, %r63, %r64},
        {%f664, %f663, %f662, %f661, %f660, %f659, %f658, %f657};
    wmma.mma.sync.aligned.row.row.m16n16k16.f32.f32 {%f656, %f655, %f654, %f653, %f652, %f651, %f650, %f649},
        {%r41, %r42, %r43, %r44, %r45, %r46, %r47, %r48},
        {%r65, %r66, %r67, %r68, %r69, %r70, %r71, %r72},
        {%f656, %f655, %f654, %f653, %f652, %f651, %f650, %f649};
    wmma.mma.sync.aligned.row.row.m16n16k16.f32.f32 {%f648, %f647, %f646, %f645, %f644, %f643, %f642, %f641},
        {%r41, %r42, %r43, %r44, %r45, %r46, %r47, %r48},
        {%r73, %r74, %r75, %r76, %r77, %r78, %r79, %r80},
        {%f648, %f647, %f646, %f645, %f644, %f643, %f642, %f641};
    wmma.mma.sync.aligned.row.row.m16n16k16.f32.f32 {%f672, %f671, %f670, %f669, %f668, %f667, %f666, %f665},
        {%r41, %r42, %r43, %r44, %r45, %r46, %r47, %r48},
        {%r49, %r50, %r51, %r52, %r53, %r54, %r55, %r56},
        {%f672, %f671, %f670, %f669, %f668, %f667, %f666, %f665};
    wmma.mma.sync.aligned.row.row.m16n16k16.f32.f32 {%f664, %f663, %f662, %f661, %f660, %f659, %f658, %f657},
        {%r41, %r42, %r43, %r44, %r45, %r46, %r47, %r48},
        {%r57, %r58, %r59, %r60, %r61, %r62, %r63, %r64},
        {%f664, %f663, %f662, %f661, %f660, %f659, %f658, %f657};
    wmma.mma.sync.aligned.row.row.m16n16k16.f32.f32 {%f656, %f655, %f654, %f653, %f652, %f651, %f650, %f649},
        {%r41, %r42, %r43, %r44, %r45, %r46, %r47, %r48},
        {%r65, %r66, %r67, %r68, %r69, %r70, %r71, %r72},
        {%f656, %f655, %f654, %f653, %f652, %f651, %f650, %f649};
    wmma.mma.sync.aligned.row.row.m16n16k16.f32.f32 {%f648, %f647, %f646, %f645, %f644, %f643, %f642, %f641},
        {%r41, %r42, %r43, %r44, %r45, %r46, %r47, %r48},
        {%r73, %r74, %r75, %r76, %r77, %r78, %r79, %r80},
        {%f648, %f647, %f646, %f645, %f644, %f643, %f642, %f641};
    wmma.mma.sync.aligned.row.row.m16n16k16.f32.f32 {%f672, %f671, %f670, %f669, %f668, %f667, %f666, %f665},
        {%r41, %r42, %r43, %r44, %r45, %r46, %r47, %r48},
        {%r49, %r50, %r51, %r52, %r53, %r54, %r55, %r56},
        {%f672, %f671, %f670, %f669, %f668, %f667, %f666, %f665};
    wmma.mma.sync.aligned.row.row.m16n16k16.f32.f32 {%f664, %f663, %f662, %f661, %f660, %f659, %f658, %f657},
        {%r41, %r42, %r43, %r44, %r45, %r46, %r47, %r48},
        {%r57, %r58, %r59, %r60, %r61, %r62, %r63, %r64},
        {%f664, %f663, %f662, %f661, %f660, %f659, %f658, %f657};
    wmma.mma.sync.aligned.row.row.m16n16k16.f32.f32 {%f656, %f655, %f654, %f653, %f652, %f651, %f650, %f649},
        {%r41, %r42, %r43, %r44, %r45, %r46, %r47, %r48},
        {%r65, %r66, %r67, %r68, %r69, %r70, %r71, %r72},
        {%f656, %f655, %f654, %f653, %f652, %f651, %f650, %f649};
    wmma.mma.sync.aligned.row.row.m16n16k16.f32.f32 {%f648, %f647, %f646, %f645, %f644, %f643, %f642, %f641},
        {%r41, %r42, %r43, %r44, %r45, %r46, %r47, %r48},
        {%r73, %r74, %r75, %r76, %r77, %r78, %r79, %r80},
        {%f648, %f647, %f646, %f645, %f644, %f643, %f642, %f641};
    add.s64     %rd30, %rd30, -4;
    setp.ne.s64     %p3, %rd30, 0;
    @%p3 bra    $L__BB0_3;
$L__BB0_4:
    ld.param.u64    %rd27, [autopilot_tensor_param_3];
    and.b64     %rd26, %rd27, 3;
    setp.eq.s64     %p4, %rd26, 0;
    @%p4 bra    $L__BB0_7;
    ld.param.u64    %rd29, [autopilot_tensor_param_3];
    and.b64     %rd28, %rd29, 3;
    neg.s64     %rd31, %rd28;
$L__BB0_6:
    .pragma "nounroll";
    wmma.mma.sync.aligned.row.row.m16n16k16.f32.f32 {%f672, %f671, %f670, %f669, %f668, %f667, %f666, %f665},
        {%r41, %r42, %r43, %r44, %r45, %r46, %r47, %r48},
        {%r49, %r50, %r51, %r52, %r53, %r54, %r55, %r56},
        {%f672, %f671, %f670, %f669, %f668, %f667, %f666, %f665};
    wmma.mma.sync.aligned.row.row.m16n16k16.f32.f32 {%f664, %f663, %f662, %f661, %f660, %f659, %f658, %f657},
        {%r41, %r42, %r43, %r44, %r45, %r46, %r47, %r48},
        {%r57, %r58, %r59, %r60, %r61, %r62, %r63, %r64},
        {%f664, %f663, %f662, %f661, %f660, %f659, %f658, %f657};
    wmma.mma.sync.aligned.row.row.m16n16k16.f32.f32 {%f656, %f655, %f654, %f653, %f652, %f651, %f650, %f649},
        {%r41, %r42, %r43, %r44, %r45, %r46, %r47, %r48},
        {%r65, %r66, %r67, %r68, %r69, %r70, %r71, %r72},
        {%f656, %f655, %f654, %f653, %f652, %f651, %f650, %f649};
    wmma.mma.sync.aligned.row.row.m16n16k16.f32.f32 {%f648, %f647, %f646, %f645, %f644, %f643, %f642, %f641},
        {%r41, %r42, %r43, %r44, %r45, %r46, %r47, %r48},
        {%r73, %r74, %r75, %r76, %r77, %r78, %r79, %r80},
        {%f648, %f647, %f646, %f645, %f644, %f643, %f642, %f641};
    add.s64     %rd31, %rd31, 1;
    setp.ne.s64     %p5, %rd31, 0;
    @%p5 bra    $L__BB0_6;
$L__BB0_7:
    ld.param.u64    %rd25, [autopilot_tensor_param_0];
    mov.u32     %r401, %ctaid.x;
    mov.u32     %r402, %ntid.x;
    mul.wide.u32    %rd20, %r401, %r402;
    mov.u32     %r403, %tid.x;
    cvt.u64.u32     %rd21, %r403;
    add.s64     %rd22, %rd20, %rd21;
    shl.b64     %rd23, %rd22, 7;
    and.b64     %rd24, %rd23, -4096;
    add.s64     %rd16, %rd25, %rd24;
    wmma.store.d.sync.aligned.row.m16n16k16.f32 [%rd16], {%f672, %f671, %f670, %f669, %f668, %f667, %f666, %f665}, 16;
    add.s64     %rd17, %rd16, 1024;
    wmma.store.d.sync.aligned.row.m16n16k16.f32 [%rd17], {%f664, %f663, %f662, %f661, %f660, %f659, %f658, %f657}, 16;
    add.s64     %rd18, %rd16, 2048;
    wmma.store.d.sync.aligned.row.m16n16k16.f32 [%rd18], {%f656, %f655, %f654, %f653, %f652, %f651, %f650, %f649}, 16;
    add.s64     %rd19, %rd16, 3072;
    wmma.store.d.sync.aligned.row.m16n16k16.f32 [%rd19], {%f648, %f647, %f646, %f645, %f644, %f643, %f642, %f641}, 16;
    ret;
}
"""
