// Package scenarios compares what every scenario comes to with what is written beside it. A scenario is a folder of
// balancer/testdata/scenarios: services.toml and, for each mode, MODE.frontends.want (what it compiles to there, with the
// problems) and MODE.want (what the mode renders, in its native syntax). The node is n1 in zone z1 and has the addresses
// 192.168.1.1, 192.168.2.1 and fd00:1::1.
//
//	go test ./test/scenarios -update    writes the files anew; look at the difference before you commit it
package scenarios
