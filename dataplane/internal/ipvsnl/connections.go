package ipvsnl

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"time"
)

// readConnections decodes /proc/net/ip_vs_conn. It calls yield for each connection with a protocol
// that frontends can have, until yield returns false:
//
//	Pro FromIP   FPrt ToIP     TPrt DestIP   DPrt State       Expires PEName PEData
//	TCP 0A010002 9C40 0A600001 0050 0A020001 1F90 ESTABLISHED     899
//	UDP fd00:0000:0000:0000:0000:0000:0000:0002 9C40 fd00:... 0035 0A020001 0035 UDP             299
func readConnections(r io.Reader, yield func(Connection) bool) error {
	states := map[string]string{}
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 0, lineBuffer), lineBuffer)
	for n := 0; lines.Scan(); n++ {
		if n == 0 { // skip the header
			continue
		}
		c, ok, err := readConnection(lines.Bytes(), states)
		if err != nil {
			return fmt.Errorf("line %d of the IPVS connection table, %q: %w", n+1, lines.Bytes(), err)
		}
		if ok && !yield(c) {
			return nil
		}
	}
	return lines.Err()
}

// readConnection decodes a line. ok is false if no frontend can have the protocol. states caches
// state names, so connections share them.
func readConnection(line []byte, states map[string]string) (c Connection, ok bool, err error) {
	var words [9][]byte
	for i := range words {
		if words[i], line = cut(line); len(words[i]) == 0 {
			return c, false, errLine
		}
	}
	if c.Proto = protocolNamed(words[0]); c.Proto == "" {
		return c, false, nil
	}
	if c.Client, err = hexAddr(words[1], words[2]); err != nil {
		return c, false, err
	}
	if c.Frontend, err = hexAddr(words[3], words[4]); err != nil {
		return c, false, err
	}
	if c.Backend, err = hexAddr(words[5], words[6]); err != nil {
		return c, false, err
	}
	expires, fits := decimal(words[8])
	if !fits {
		return c, false, errLine
	}
	if c.State, fits = states[string(words[7])]; !fits {
		c.State = string(bytes.ToLower(words[7]))
		states[string(words[7])] = c.State
	}
	c.Expires = time.Duration(expires) * time.Second
	c.Template = c.Client.Port() == 0
	return c, true, nil
}
