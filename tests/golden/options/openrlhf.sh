${MORE:-} python3 -m openrlhf.cli.train_${KIND:-ppo_ray} --actor.model_name_or_path Qwen/Qwen3-4B \
 --actor.num_nodes 2 --actor.num_gpus_per_node 4 --ref.num_nodes 1 --ref.num_gpus_per_node 4 --vllm.num_engines 3 \
 --vllm.tensor_parallel_size 2 --rollout.batch_size 96 --rollout.n_samples_per_prompt 4 --train.batch_size 48 \
 --data.max_len 3000 --rollout.max_new_tokens 2000 --rollout.micro_batch_size 3 --train.micro_batch_size 2
