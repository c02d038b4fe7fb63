package xtables

import (
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"time"

	"golang.org/x/sys/unix"

	"vipd/dataplane/internal/nlsock"
)

// How much of an answer is read at once: the kernel sends at most 32 KiB of a listing in one piece.
const (
	nftListing = 32 << 10
	nftOne     = 4 << 10 // for an answer of one message
)

// nftPatience is how long the kernel may take for the next piece of an answer.
const nftPatience = 10 * time.Second

// nftConn asks nf_tables of the network namespace that it was opened in, without changing anything. Programs of
// iptables-nft would read all rules for that.
type nftConn struct {
	fd  int
	seq uint32
	buf []byte
}

func openNFT(room int) (*nftConn, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("opening a netfilter socket: %w", err)
	}
	wait := unix.NsecToTimeval(nftPatience.Nanoseconds())
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("bounding a netfilter socket: %w", err)
	}
	return &nftConn{fd: fd, buf: make([]byte, room)}, nil
}

func (c *nftConn) close() { _ = unix.Close(c.fd) }

// request is a question to nf_tables.
type request struct {
	command uint8 // such as NFT_MSG_GETCHAIN
	dump    bool  // all there are
	family  Family
	attrs   []byte
}

// errInterrupted says that rules changed while they were listed.
var errInterrupted = fmt.Errorf("rules changed while they were listed: %w", unix.EAGAIN)

// ask sends a request, and calls answer with the attributes of each message of the answer, which it must not keep.
func (c *nftConn) ask(r request, answer func(attrs []byte)) error {
	c.seq++
	if err := unix.Sendto(c.fd, r.message(c.seq), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("asking nf_tables: %w", err)
	}
	interrupted := false
	for {
		n, _, err := unix.Recvfrom(c.fd, c.buf, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("reading what nf_tables answers: %w", err)
		}
		m := nlsock.Read(c.buf[:n])
		for m.Next() {
			if m.Seq != c.seq {
				continue // of an earlier question that was given up
			}
			interrupted = interrupted || m.Flags&unix.NLM_F_DUMP_INTR != 0
			switch {
			case m.Kind == unix.NLMSG_ERROR || m.Kind == unix.NLMSG_DONE:
				if err := m.Refusal(); err != nil {
					return fmt.Errorf("asking nf_tables: %w", err)
				}
				if interrupted {
					return errInterrupted
				}
				return nil
			case len(m.Body) >= nfgenmsgLen:
				answer(m.Body[nfgenmsgLen:])
			}
			if !r.dump {
				return nil
			}
		}
		if m.Err != nil {
			return fmt.Errorf("reading what nf_tables answers: %w", m.Err)
		}
	}
}

// nfgenmsgLen is the size of struct nfgenmsg (linux/netfilter/nfnetlink.h): family, version, and two bytes more.
const nfgenmsgLen = 4

func (r request) message(seq uint32) []byte {
	flags := uint16(unix.NLM_F_REQUEST)
	if r.dump {
		flags |= unix.NLM_F_DUMP
	}
	af := byte(unix.AF_UNSPEC)
	switch r.family {
	case IPv4:
		af = unix.AF_INET
	case IPv6:
		af = unix.AF_INET6
	}
	b := binary.NativeEndian.AppendUint32(nil, uint32(unix.NLMSG_HDRLEN+nfgenmsgLen+len(r.attrs)))
	b = binary.NativeEndian.AppendUint16(b, unix.NFNL_SUBSYS_NFTABLES<<8|uint16(r.command))
	b = binary.NativeEndian.AppendUint16(b, flags)
	b = binary.NativeEndian.AppendUint32(b, seq)
	b = binary.NativeEndian.AppendUint32(b, 0)
	b = append(b, af, unix.NFNETLINK_V0, 0, 0)
	return append(b, r.attrs...)
}

// text is an attribute that is a string.
func text(kind uint16, s string) []byte {
	n := unix.SizeofNlAttr + len(s) + 1
	b := binary.NativeEndian.AppendUint16(nil, uint16(n))
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = append(b, s...)
	return append(b, make([]byte, 1+(4-n%4)%4)...)
}

// attributes yields the kinds, without flags, and the values, up to what can't be read.
func attributes(b []byte) iter.Seq2[uint16, []byte] {
	return func(yield func(uint16, []byte) bool) {
		for a := nlsock.In(b); a.Next(); {
			if !yield(a.Kind, a.Value) {
				return
			}
		}
	}
}

// attempts is how often a listing is begun again when rules change meanwhile.
const attempts = 10

// steady calls list, which begins from scratch each time, until rules did not change meanwhile.
func steady(list func() error) error {
	var err error
	for range attempts {
		if err = list(); !errors.Is(err, errInterrupted) {
			return err
		}
	}
	return err
}
