package examples

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
)

func dns(t *testing.T, e example) {
	nameServer(t, "ns1", "127.10.2.11:5353")
	nameServer(t, "ns2", "127.10.2.12:5353")
	e.Daemon(t, e.name)
	e.sayUntil(t, "dig @127.10.2.1 -p 5353 +short", "ns1", "ns2")
	e.sayUntil(t, "dig @127.10.2.1 -p 5353 +tcp", "ns1", "ns2")
}

// nameServer answers every TXT question with its name, over UDP and TCP, until the test ends.
func nameServer(t *testing.T, name, address string) {
	t.Helper()
	packets, err := net.ListenPacket("udp", address)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	var loops sync.WaitGroup
	loops.Go(func() { answerPackets(t, packets, name) })
	loops.Go(func() { answerStreams(t, listener, name) })
	t.Cleanup(func() {
		_ = packets.Close()
		_ = listener.Close()
		loops.Wait()
	})
}

func answerPackets(t *testing.T, packets net.PacketConn, name string) {
	buffer := make([]byte, 4096)
	for {
		n, client, err := packets.ReadFrom(buffer)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
			return
		}
		if answer, err := answerTo(buffer[:n], name); err != nil {
			t.Errorf("%s: %v", name, err)
		} else if _, err := packets.WriteTo(answer, client); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// answerStreams serves connections one after another. Each connection carries one question, as
// dig's connections do.
func answerStreams(t *testing.T, listener net.Listener, name string) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		if err := answerStream(conn, name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func answerStream(conn net.Conn, name string) error {
	defer func() { _ = conn.Close() }()
	var length [2]byte
	if _, err := io.ReadFull(conn, length[:]); err != nil {
		return err
	}
	question := make([]byte, binary.BigEndian.Uint16(length[:]))
	if _, err := io.ReadFull(conn, question); err != nil {
		return err
	}
	answer, err := answerTo(question, name)
	if err != nil {
		return err
	}
	_, err = conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(answer))), answer...))
	return err
}

func answerTo(question []byte, name string) ([]byte, error) {
	var m dnsmessage.Message
	if err := m.Unpack(question); err != nil {
		return nil, err
	}
	m.Response, m.Additionals = true, nil
	for _, q := range m.Questions {
		m.Answers = append(m.Answers, dnsmessage.Resource{
			Header: dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class, TTL: 1},
			Body:   &dnsmessage.TXTResource{TXT: []string{name}},
		})
	}
	return m.Pack()
}
