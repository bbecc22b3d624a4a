/*
 * Any bytes as a GGUF file: an answer, no read outside the range, and, when the file is accepted, a
 * table of contents that lies inside it and finds each of its names.
 */
#include <stdlib.h>
#include <string.h>

#include "daemon/gguf.h"
#include "tests/fuzz/plant.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
        static const struct hr_gguf_limits limits = {.metadata_bytes_max = 1 << 20,
                                                     .metadata_count_max = 10000,
                                                     .tensors_max = 10000,
                                                     .tensor_bytes_max = UINT64_C(1) << 40};
        uint8_t *exact = malloc(size ? size : 1);
        struct hr_gguf gguf = {0};
        struct hr_diag diag = {0};

        HR_ASSERT(exact);
        memcpy(exact, bytes, size);
        if (hr_gguf_parse(exact, size, &limits, &diag, &gguf) != HR_OK) {
                HR_ASSERT(diag.status != HR_OK && diag.words[0] != '\0');
        } else {
                HR_PLANT(gguf.tensors->tensor_count == 0 && gguf.metadata_bytes > 20);
                HR_ASSERT(gguf.metadata_offset + gguf.metadata_bytes <= size);
                for (uint32_t i = 0; i < gguf.tensors->tensor_count; i++) {
                        const struct hr_manifest_tensor *tensor = &gguf.tensors->tensors[i];

                        HR_ASSERT(tensor->bytes == 0 || tensor->offset + tensor->bytes <= size);
                        HR_ASSERT(hr_manifest_find(gguf.tensors, tensor->name,
                                                   tensor->name_bytes) == i);
                }
        }
        hr_gguf_deinit(&gguf);
        free(exact);
        return 0;
}
