package nft

import (
	"encoding/binary"
	"os"

	"golang.org/x/sys/unix"

	"vipd/dataplane/internal/nlsock"
)

// The netlink address of each connection of this process consists of its process id in the low
// pidBits, and a positive number in the other bits. The kernel includes the sender's address in its
// events about a transaction. Other programs use their bare process id, or random addresses.
const pidBits = 22

// openOwn opens a socket with an unused address in this format.
func openOwn() (*nlsock.Socket, error) {
	return nlsock.OpenAt(unix.NETLINK_NETFILTER, func(yield func(uint32) bool) {
		for n := uint32(1); n < 1<<(32-pidBits) && yield(n<<pidBits|uint32(os.Getpid())); n++ {
		}
	})
}

// SkipOwn makes a socket that listens to nf_tables drop the events of this process's transactions.
// Thousands of elements in a single transaction would displace other programs' events. If
// generations is set, the socket still receives these transactions' generations.
func SkipOwn(s *nlsock.Socket, generations bool) error {
	wire := func(n uint32) uint32 { return binary.BigEndian.Uint32(binary.NativeEndian.AppendUint32(nil, n)) }
	kind := binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, subsystem<<8|msgNewGen))
	const loadWord, loadHalf = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, unix.BPF_LD | unix.BPF_H | unix.BPF_ABS
	const and, equal, end = unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, unix.BPF_RET | unix.BPF_K
	const kindAt, portAt = 4, 12 // offsets in an nlmsghdr
	program := []unix.SockFilter{
		{Code: loadWord, K: portAt},
		{Code: and, K: wire(1<<pidBits - 1)},
		{Code: equal, K: wire(uint32(os.Getpid())), Jf: 6},
		{Code: loadWord, K: portAt},
		{Code: and, K: ^wire(1<<pidBits - 1)},
		{Code: equal, K: 0, Jt: 3},
		{Code: loadHalf, K: kindAt},
		{Code: equal, K: uint32(kind), Jt: 1},
		{Code: end, K: 0},
		{Code: end, K: ^uint32(0)},
	}
	if !generations {
		program[7].Jt = 0
	}
	return s.Filter(program)
}
