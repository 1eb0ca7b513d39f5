accelerate launch --num_processes ${N:-6} ${LAUNCH:-} ${ENTRY:-grpo.py} --model_name_or_path Qwen/Qwen3-4B \
 --use_vllm --num_generations 4 --per_device_train_batch_size 2 --gradient_accumulation_steps 6 --max_prompt_length 300 \
 --max_completion_length 900
