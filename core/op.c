/* The table of ops, from op.def. */
#include "core/op.h"

#include <string.h>

const struct hr_op_info hr_op_infos[HR_OP_LIMIT] = {
#define X(op_name, number, sources_least, sources_most, op_kind)                                   \
        [number] = { #op_name, sources_least, sources_most, HR_OP_KIND_##op_kind },
#include "core/op.def"
#undef X
};

const char *hr_op_name(uint32_t op) {
        const struct hr_op_info *info = hr_op_info(op);

        return info ? info->name : "?";
}

int hr_op_from_name(const char *name) {
        for (int i = 0; i < HR_OP_LIMIT; i++)
                if (hr_op_infos[i].name && strcmp(hr_op_infos[i].name, name) == 0)
                        return i;
        return -1;
}
