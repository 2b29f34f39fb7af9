/* Generated from 1 operator files; do not edit. The library acme. */
#include "anyop/table.h"

extern const AnyopOp anyop_table_acme_blend;

static const AnyopOp* const kOps[] = {
    &anyop_table_acme_blend,
};

static const AnyopLibrary kLibrary = {
    sizeof(AnyopLibrary), ANYOP_ABI_VERSION, "acme", kOps, 1, 0,
};

#if defined(_WIN32)
__declspec(dllexport)
#else
__attribute__((visibility("default")))
#endif
const AnyopLibrary* AnyopLibraryEntry(void);

const AnyopLibrary* AnyopLibraryEntry(void) { return &kLibrary; }
