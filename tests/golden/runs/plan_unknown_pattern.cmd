smplan --target zz* --model gpt2
