module cocoonstack.io/node/benchmarks/probe

go 1.26.0
