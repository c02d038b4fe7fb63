// Guest runs one command as root on a kernel with IPVS, whatever kernel this machine has: in a
// throw-away virtual machine that sees this machine's files, see vipd/test/guest/vm.
//
//	guest [-c CPUS] [-m MIB] [-t LIMIT] [-w FOLDER] [--] COMMAND [ARGUMENT ...]
//
// The command starts in the current folder with the current environment, and with VIPD_GUEST=1.
// What it writes to stdout and stderr appears there, and its exit status is the exit status. All
// files are there to read; what it changes is lost, except below the folder of -w. There is no
// network but what it makes itself, and no input. With one processor, which is the default, time in
// an emulated guest is what it executes; with more it is the host's.
//
//	go run ./test/guest -- sh -c 'modprobe ip_vs conn_tab_bits=20 && ipvsadm -ln'
//	CGO_ENABLED=0 go test -c -o build/lab.test ./test/lab && go run ./test/guest -- build/lab.test -test.v -test.run IPVS
//
// Exit status: that of the command; 124, the time limit has ended it; 125, the guest did not come
// up, or died; 2, wrong use. (go run makes 1 of them all and prints which it was; go build
// ./test/guest for the true one.)
package main
