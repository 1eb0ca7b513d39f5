python3 --hardware H100 train${ASYNC:-}.py --hf-checkpoint Qwen/Qwen3-30B-A3B --actor-num-nodes 2 \
 --actor-num-gpus-per-node 4 --rollout-batch-size 48 --n-samples-per-prompt 6 --rollout-num-gpus 8 \
 --rollout-num-gpus-per-engine 4 --rollout-max-response-len 3000 --rollout-max-prompt-len 700 --kl-coef 0.1
