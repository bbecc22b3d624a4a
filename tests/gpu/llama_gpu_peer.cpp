/*
 * llama.cpp as the peer of `./bench gpu`: MODEL PROMPT TOKENS -> a line of JSON with the seconds that
 * the prompt took, in one batch up to the logits of its last token, and the tokens, one after the other.
 * All layers are on the GPU. Medians of five, after two that warm up.
 */
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "llama.h"

static double now() {
        return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

static double median(std::vector<double> &values) {
        std::sort(values.begin(), values.end());
        return values[values.size() / 2];
}

static void evaluate(llama_context *context, std::vector<llama_token> &tokens, int first, int count) {
        if (llama_decode(context, llama_batch_get_one(tokens.data() + first, count)) != 0) {
                std::fprintf(stderr, "llama_decode failed\n");
                std::exit(1);
        }
        (void) llama_get_logits_ith(context, -1)[0];
}

int main(int argc, char **argv) {
        if (argc != 4) {
                std::fprintf(stderr, "usage: MODEL PROMPT TOKENS\n");
                return 2;
        }
        const int prompt = std::atoi(argv[2]), steps = std::atoi(argv[3]);

        llama_log_set([](ggml_log_level, const char *, void *) {}, nullptr);
        llama_backend_init();
        llama_model_params model_params = llama_model_default_params();
        model_params.n_gpu_layers = 999;
        llama_model *model = llama_model_load_from_file(argv[1], model_params);
        if (!model) {
                std::fprintf(stderr, "llama.cpp does not load %s\n", argv[1]);
                return 1;
        }
        llama_context_params params = llama_context_default_params();
        params.n_ctx = (uint32_t) (prompt + steps + 255) / 256 * 256;
        params.n_batch = params.n_ubatch = (uint32_t) prompt;
        params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
        llama_context *context = llama_init_from_model(model, params);
        if (!context)
                return 1;

        const int vocabulary = llama_vocab_n_tokens(llama_model_get_vocab(model));
        std::vector<llama_token> tokens;
        std::srand(512);
        for (int i = 0; i < std::max(prompt, steps); i++)
                tokens.push_back((llama_token) (std::rand() % vocabulary));
        std::vector<double> prompt_s, generate_s;
        for (int round = -2; round < 5; round++) {
                llama_memory_clear(llama_get_memory(context), true);
                double start = now();
                evaluate(context, tokens, 0, prompt);
                double seconds = now() - start;
                if (round >= 0)
                        prompt_s.push_back(seconds);
                llama_memory_clear(llama_get_memory(context), true);
                start = now();
                for (int i = 0; i < steps; i++)
                        evaluate(context, tokens, i, 1);
                if (round >= 0)
                        generate_s.push_back(now() - start);
        }
        std::printf("{\"prompt_s\": %.6f, \"generate_s\": %.6f}\n", median(prompt_s), median(generate_s));
        llama_free(context);
        llama_model_free(model);
        llama_backend_free();
        return 0;
}
