NPROC_PER_NODE=${N:-8} NNODES=${NODES:-1} CUDA_VISIBLE_DEVICES=${D:-} ${PROGRAM:-swift} ${KIND:-rlhf} --rlhf_type ${TYPE:-grpo} \
 --model Qwen/Qwen3-4B --use_vllm true --vllm_mode ${MODE:-server} --vllm_tensor_parallel_size 2 --max_length 1100 \
 --max_completion_length 900 --per_device_train_batch_size 3 --gradient_accumulation_steps 2 --num_generations 4 \
 --lora_rank 24 --vllm_gpu_memory_utilization 0.6
