/* The table of ops, from op.def. */
#include "core/op.h"

#include <string.h>

static const struct hr_op_info ops[HR_OP_LIMIT] = {
#define X(op_name, number, sources_least, sources_most, op_kind)                                   \
        [number] = { #op_name, sources_least, sources_most, HR_OP_KIND_##op_kind },
#include "core/op.def"
#undef X
};

const struct hr_op_info *hr_op_info(uint32_t op) {
        return op < HR_OP_LIMIT && ops[op].name ? &ops[op] : NULL;
}

const char *hr_op_name(uint32_t op) {
        const struct hr_op_info *info = hr_op_info(op);

        return info ? info->name : "?";
}

int hr_op_from_name(const char *name) {
        for (int i = 0; i < HR_OP_LIMIT; i++)
                if (ops[i].name && strcmp(ops[i].name, name) == 0)
                        return i;
        return -1;
}

bool hr_op_is_view(uint32_t op) {
        const struct hr_op_info *info = hr_op_info(op);

        return info && info->kind == HR_OP_KIND_VIEW;
}
