/*
 * Any bytes as a safetensors file: an answer, no read outside the range, and, when the file is
 * accepted, a table of contents that covers what follows the header and finds each of its names.
 */
#include <stdlib.h>
#include <string.h>

#include "daemon/safetensors.h"
#include "tests/fuzz/plant.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
        static const struct hr_safetensors_limits limits = {.header_bytes_max = 1 << 20,
                                                            .metadata_count_max = 10000,
                                                            .tensors_max = 10000,
                                                            .tensor_bytes_max = UINT64_C(1) << 40};
        uint8_t *exact = malloc(size ? size : 1);
        struct hr_safetensors file = {0};
        struct hr_diag diag = {0};

        HR_ASSERT(exact);
        memcpy(exact, bytes, size);
        if (hr_safetensors_parse(exact, size, &limits, &diag, &file) != HR_OK) {
                HR_ASSERT(diag.status != HR_OK && diag.words[0] != '\0');
        } else {
                uint64_t end = file.data_offset;

                for (uint32_t i = 0; i < file.tensors->tensor_count; i++) {
                        const struct hr_manifest_tensor *tensor = &file.tensors->tensors[i];

                        HR_ASSERT(tensor->offset == end);
                        HR_ASSERT(tensor->bytes == 0 || !file.is_aligned ||
                                  tensor->offset % hr_type_info(tensor->type)->block_bytes == 0);
                        HR_ASSERT(hr_manifest_find(file.tensors, tensor->name,
                                                   tensor->name_bytes) == i);
                        end += tensor->bytes;
                }
                HR_ASSERT(end == size);
                HR_PLANT(file.tensors->tensor_count > 0 && file.tensors->tensors[0].name[0] == '!');
        }
        hr_safetensors_deinit(&file);
        free(exact);
        return 0;
}
