for model in resnet50 vit-large-32; do smplan --target p3.8xlarge --model $model --seq-len 512; done
