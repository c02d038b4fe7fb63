// Guest runs one command as root on a kernel with IPVS, whatever kernel this machine has. The
// kernel runs in a disposable virtual machine that has this machine's files (see
// vipd/test/guest/vm).
//
//	guest [-c CPUS] [-m MIB] [-t LIMIT] [-w FOLDER] [--] COMMAND [ARGUMENT ...]
//
// The command starts in the current folder with the current environment, and with VIPD_GUEST=1. The
// command's stdout and stderr, and its exit status, are the guest's. All files are readable;
// changes are lost, except below the folder of -w. There is no input, and no network except links
// that the command itself creates. With one processor (the default), the clock of an emulated guest
// counts executed instructions. With more processors, it follows the host's clock.
//
//	go run ./test/guest -- sh -c 'modprobe ip_vs conn_tab_bits=20 && ipvsadm -ln'
//	CGO_ENABLED=0 go test -c -o build/lab.test ./test/lab && go run ./test/guest -- build/lab.test -test.v -test.run IPVS
//
// The exit status is the command's, 124 if the time limit has ended it, 125 if the guest did not
// start or died, or 2 for wrong use. go run prints the status and returns 1 instead; use go build
// ./test/guest to keep it.
package main
