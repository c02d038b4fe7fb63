package ipvsnl

import (
	"bufio"
	"io"

	"vipd/balancer"
)

// readNames reads which virtual servers the kernel's table has. Others are those that no frontend can have: for firewall
// marks, and for other protocols.
func readNames(r io.Reader) (keys []balancer.Key, others int, err error) {
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 0, lineBuffer), lineBuffer)
	for n := 0; lines.Scan(); n++ {
		word, rest := cut(lines.Bytes())
		if n < 3 || string(word) == "->" { // the head, and destinations
			continue
		}
		proto := protocolNamed(word)
		if proto == "" {
			others++
			continue
		}
		at, _ := cut(rest)
		addr, err := hexAddrPort(at)
		if err != nil {
			return nil, 0, err
		}
		keys = append(keys, balancer.Key{Addr: addr.Addr(), Port: addr.Port(), Proto: proto})
	}
	return keys, others, lines.Err()
}
