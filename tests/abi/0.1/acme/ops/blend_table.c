/* Generated from blend.toml; do not edit. The table of acme.blend. */
#include "anyop/table.h"
#include "acme/ops/blend.h"

#if defined(__GNUC__)
#pragma GCC diagnostic ignored "-Woverlength-strings"
#endif

#include <math.h>

static const int64_t kDefaultOf_shift[] = {1, 2};
static const AnyopIntList kDefault_shift = {kDefaultOf_shift, 2};

static const AnyopParam kParams[] = {
    {.name = "x", .shape_text = "* D", .offset = offsetof(BlendArgs, x), .kind = kAnyopTensor,
     .dtype_a = -1, .dtype_b = -1, .dtype_set = 0x100ull, .length = -1, .fixed_count = -1},
    {.name = "y", .shape_text = "D", .offset = offsetof(BlendArgs, y), .shape = 5,
     .flags = kAnyopOptional | kAnyopHasDefault, .kind = kAnyopTensor, .dtype_b = -1,
     .length = -1, .fixed_count = -1},
    {.name = "factor", .offset = offsetof(BlendArgs, factor), .shape = -1,
     .flags = kAnyopOptional | kAnyopHasDefault, .kind = kAnyopFloat, .dtype_a = -1,
     .dtype_b = -1, .value = {.f = NAN}, .length = -1, .fixed_count = -1},
    {.name = "shift", .offset = offsetof(BlendArgs, shift), .shape = -1,
     .flags = kAnyopList | kAnyopHasDefault, .kind = kAnyopInt, .dtype_a = -1, .dtype_b = -1,
     .value = {.list = &kDefault_shift}, .length = -1, .fixed_count = -1},
    {.name = "mode", .offset = offsetof(BlendArgs, mode), .shape = -1, .flags = kAnyopHasDefault,
     .kind = kAnyopStr, .dtype_a = -1, .dtype_b = -1, .value = {.s = "plain"}, .length = -1,
     .fixed_count = -1},
    {.name = "twice", .offset = offsetof(BlendArgs, twice), .shape = -1,
     .flags = kAnyopHasDefault, .kind = kAnyopBoolean, .dtype_a = -1, .dtype_b = -1, .length = -1,
     .fixed_count = -1},
    {.name = "out", .shape_text = "* D", .offset = offsetof(BlendArgs, out),
     .flags = kAnyopOutput, .kind = kAnyopTensor, .dtype_b = -1, .length = -1, .fixed_count = -1},
    {.name = "total", .shape_text = "*", .offset = offsetof(BlendArgs, total), .shape = 10,
     .flags = kAnyopOutput, .kind = kAnyopTensor, .dtype_b = -1, .length = -1, .fixed_count = -1},
};

static const int32_t kCode[] = {
    0, 1, 0, 0, 0, 1, 0, -1, 0, 0, 0, 0, 0, 0};

static const char* const kSymbols[] = {
    "D",
};

static const AnyopKernelEntry kKernels[] = {
    {"cpu", "blend.cc", (AnyopKernel)acme_blend_cpu, 1, 0},
};

extern const AnyopOp anyop_table_acme_blend;
const AnyopOp anyop_table_acme_blend = {
    .size = sizeof(AnyopOp),
    .abi_version = ANYOP_ABI_VERSION,
    .name_space = "acme",
    .name = "blend",
    .schema = "acme::blend(Tensor x, Tensor\? y=None, float\? factor=None, int[] shift=[1, 2], str mode='plain', boo"
    "l twice=False) -> (Tensor out, Tensor total)",
    .doc = "blend($module, x, y=None, factor=None, shift=[1, 2], mode='plain', twice=False, *, out=None, total=No"
    "ne)\n"
    "--\n"
    "\n"
    "factor * x + y + sum(shift), and the sum of each row of that.\n"
    "\n"
    "x:        (*, D) float32, contiguous; rows.\n"
    "y:        (D,) dtype of x, contiguous, or None; added to each row.\n"
    "factor:   float or None, default None; 1 when absent.\n"
    "shift:    int[], default [1, 2]; added.\n"
    "mode:     str, default 'plain'; 'plain', or 'negative' to change the sign of out.\n"
    "twice:    bool, default False; doubles out.\n"
    "Returns   out: (*, D), new unless given, dtype of x; total: (*,), new unless given, dtype of x. Runs\n"
    "          on the current stream; never waits.\n"
    "Raises    ValueError on shape or device, TypeError on dtype, NotImplementedError without a kernel.\n"
    "Computes  out[r,d] = factor * x[r,d] + y[d] + sum(shift); total[r] = sum_d(out[r,d])\n"
    "Source    the ABI test\n",
    .metadata = "{\"namespace\":\"acme\",\"name\":\"blend\",\"schema\":\"acme::blend(Tensor x, Tensor\? y=None, float\?"
    " factor=None, int[] shift=[1, 2], str mode='plain', bool twice=False) -> (Tensor out, Tensor total)\""
    ",\"brief\":\"factor * x + y + sum(shift), and the sum of each row of that.\",\"math\":\"out[r,d] = fa"
    "ctor * x[r,d] + y[d] + sum(shift); total[r] = sum_d(out[r,d])\",\"source\":\"the ABI test\",\"inputs\""
    ":[{\"name\":\"x\",\"kind\":\"Tensor\",\"optional\":false,\"list\":false,\"optional_elements\":false,\""
    "fixed_count\":null,\"mutated\":false,\"keyword_only\":false,\"has_default\":false,\"default\":null,\""
    "about\":\"rows\",\"shape\":{\"text\":\"* D\",\"length\":null,\"expand\":false,\"before\":[],\"group\""
    ":\"_\",\"after\":[\"D\"]},\"dtypes\":{\"rule\":\"one_of\",\"names\":[\"float32\"],\"same_as\":null},\""
    "possible_dtypes\":[\"float32\"],\"layout\":\"contiguous\",\"alignment\":0,\"expanded\":false,\"inplac"
    "e\":false},{\"name\":\"y\",\"kind\":\"Tensor\",\"optional\":true,\"list\":false,\"optional_elements\""
    ":false,\"fixed_count\":null,\"mutated\":false,\"keyword_only\":false,\"has_default\":true,\"default\""
    ":null,\"about\":\"added to each row\",\"shape\":{\"text\":\"D\",\"length\":null,\"expand\":false,\"be"
    "fore\":[\"D\"],\"group\":null,\"after\":[]},\"dtypes\":{\"rule\":\"one_of\",\"names\":[],\"same_as\":"
    "\"x\"},\"possible_dtypes\":[\"float32\"],\"layout\":\"contiguous\",\"alignment\":0,\"expanded\":false"
    ",\"inplace\":false},{\"name\":\"factor\",\"kind\":\"float\",\"optional\":true,\"list\":false,\"option"
    "al_elements\":false,\"fixed_count\":null,\"mutated\":false,\"keyword_only\":false,\"has_default\":tru"
    "e,\"default\":null,\"about\":\"1 when absent\"},{\"name\":\"shift\",\"kind\":\"int\",\"optional\":fal"
    "se,\"list\":true,\"optional_elements\":false,\"fixed_count\":null,\"mutated\":false,\"keyword_only\":"
    "false,\"has_default\":true,\"default\":[1,2],\"about\":\"added\"},{\"name\":\"mode\",\"kind\":\"str\""
    ",\"optional\":false,\"list\":false,\"optional_elements\":false,\"fixed_count\":null,\"mutated\":false"
    ",\"keyword_only\":false,\"has_default\":true,\"default\":\"plain\",\"about\":\"'plain', or 'negative'"
    " to change the sign of out\"},{\"name\":\"twice\",\"kind\":\"bool\",\"optional\":false,\"list\":false"
    ",\"optional_elements\":false,\"fixed_count\":null,\"mutated\":false,\"keyword_only\":false,\"has_defa"
    "ult\":true,\"default\":false,\"about\":\"doubles out\"}],\"results\":[{\"name\":\"out\",\"kind\":\"Te"
    "nsor\",\"optional\":false,\"about\":\"\",\"shape\":{\"text\":\"* D\",\"length\":null,\"expand\":false"
    ",\"before\":[],\"group\":\"_\",\"after\":[\"D\"]},\"dtypes\":{\"rule\":\"one_of\",\"names\":[],\"same"
    "_as\":\"x\"},\"possible_dtypes\":[\"float32\"],\"layout\":\"contiguous\",\"alignment\":0,\"expanded\""
    ":false},{\"name\":\"total\",\"kind\":\"Tensor\",\"optional\":false,\"about\":\"\",\"shape\":{\"text\""
    ":\"*\",\"length\":null,\"expand\":false,\"before\":[],\"group\":\"_\",\"after\":[]},\"dtypes\":{\"rul"
    "e\":\"one_of\",\"names\":[],\"same_as\":\"x\"},\"possible_dtypes\":[\"float32\"],\"layout\":\"contigu"
    "ous\",\"alignment\":0,\"expanded\":false}],\"conditions\":[],\"inplace\":[],\"mutated\":[],\"symbols\""
    ":{\"sizes\":[\"D\"],\"attributes\":[],\"groups\":[\"_\"],\"joins\":[],\"element_sizes\":[],\"element_"
    "groups\":[]},\"kernels\":[{\"backend\":\"cpu\",\"file\":\"blend.cc\",\"arch\":null,\"priority\":0}],\""
    "backward\":null,\"tolerance\":{\"float32\":1e-06},\"test\":{},\"bench\":{}}",
    .params = kParams,
    .code = kCode,
    .symbols = kSymbols,
    .attributes = NULL,
    .joins = NULL,
    .conditions = NULL,
    .kernels = kKernels,
    .param_size = sizeof(AnyopParam),
    .kernel_size = sizeof(AnyopKernelEntry),
    .num_inputs = 6,
    .num_outputs = 2,
    .args_size = sizeof(BlendArgs),
    .sizes_offset = offsetof(BlendArgs, D),
    .code_words = 14,
    .num_symbols = 1,
    .num_sizes = 1,
    .num_groups = 1,
    .num_joins = 0,
    .num_conditions = 0,
    .num_kernels = sizeof(kKernels) / sizeof(kKernels[0]),
    .element_symbols = 0x0ull,
    .element_groups = 0x0ull,
    .args_hash = ANYOP_HASH_ACME_BLEND,
};
