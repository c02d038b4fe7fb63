package userspace

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/pires/go-proxyproto"
)

const (
	// headerTime is how long a client may take to send its complete PROXY header.
	headerTime = 5 * time.Second
	// maxHeader is the maximum size of a client's PROXY header. Longer headers are refused.
	maxHeader = headerV2 + 4096 // the limit of go-proxyproto
	// headerV1 is the maximum size of a version 1 header. headerV2 is the minimum size of a version
	// 2 header.
	headerV1, headerV2 = 107, 16
)

// errNoHeader means that a connection did not start with a valid PROXY header, or that its header
// names a client outside source_ranges.
var errNoHeader = errors.New("no valid PROXY header")

// headerSize returns the size of the PROXY header at the start of data. It returns 0 if more data
// is needed.
func headerSize(data []byte) (int, error) {
	startsLike := func(signature string) bool {
		n := min(len(data), len(signature))
		return string(data[:n]) == signature[:n]
	}
	switch {
	case startsLike(string(proxyproto.SIGV2)):
		if len(data) < headerV2 {
			return 0, nil
		}
		if size := headerV2 + int(binary.BigEndian.Uint16(data[14:])); size <= maxHeader {
			return size, nil
		}
	case startsLike("PROXY "):
		line := data[:min(len(data), headerV1)]
		if end := bytes.IndexByte(line, '\n'); end >= 0 {
			return end + 1, nil
		}
		if len(line) < headerV1 {
			return 0, nil
		}
	}
	return 0, errNoHeader
}

// namedClient returns the client that a complete header names. A header may name none, for example
// in a sender's health check. Then the client is the sender.
func namedClient(text []byte, sender netip.AddrPort) (netip.AddrPort, error) {
	h, err := proxyproto.Read(bufio.NewReaderSize(bytes.NewReader(text), len(text)))
	if err != nil {
		return sender, fmt.Errorf("%w: %w", errNoHeader, err)
	}
	client, ok := h.SourceAddr.(*net.TCPAddr)
	if !ok || h.Command.IsLocal() {
		return sender, nil
	}
	at := client.AddrPort()
	return netip.AddrPortFrom(at.Addr().Unmap(), at.Port()), nil
}

// introduceLocked sets the connection's client to the client that a complete header names. The
// sender must still be trusted, because the configuration may have changed since the accept.
func (c *conn) introduceLocked(text []byte) error {
	conf := c.f.conf.Load()
	if !conf.AcceptProxyProtocol || !conf.Allows(c.from.Addr()) {
		return fmt.Errorf("%w: sender %s is no longer trusted", errNoHeader, c.from)
	}
	client, err := namedClient(text, c.from)
	if err != nil {
		return err
	}
	if !conf.AllowsClient(client.Addr()) {
		return fmt.Errorf("%w: client %s is not in any range of source_ranges", errNoHeader, client.Addr())
	}
	c.from = client
	return nil
}

// reportHeader logs a warning if err means that a client sent no valid header.
func (c *conn) reportHeader(err error) {
	if errors.Is(err, errNoHeader) {
		c.f.d.seldom("refusing a client: accept_proxy_protocol needs a PROXY header at the start of the connection", "frontend", c.f.key, "client", c.from, "err", err)
	}
}
