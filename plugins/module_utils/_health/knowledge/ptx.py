# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Device code as PTX, which the driver compiles for its GPU. Generated from src/cuda/copy.cu by `make -C src/cuda`; do not edit."""

from __future__ import annotations

#: SHA-256 of src/cuda/copy.cu, and what compiled it.
SOURCE_SHA256 = "abcc5f18b3a7a90f75a1685450032e08c3864ab89d25e9b5d063b8c9a92b1db5"
COMPILER = "nvcc 13.0.88, header lowered to PTX 6.3 and sm_70"

#: Entry ``autopilot_copy(to, from, vectors)``: copies ``vectors`` times 16 bytes, one side being mapped host memory.
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
