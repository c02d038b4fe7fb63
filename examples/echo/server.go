package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// server answers with its name over HTTP, TCP and UDP. An empty address turns a protocol off.
type server struct {
	name           string
	http, tcp, udp string
	// grace is how long serve waits for open connections before it closes them.
	grace  time.Duration
	counts counts

	httpListener, tcpListener net.Listener
	udpConn                   net.PacketConn
}

// listen opens the sockets. If it can't open a socket, it closes the sockets that it has opened.
func (s *server) listen() (err error) {
	defer func() {
		if err != nil {
			s.closeListeners()
		}
	}()
	if s.http != "" {
		if s.httpListener, err = net.Listen("tcp", s.http); err != nil {
			return explain("http", s.http, err)
		}
		s.http = s.httpListener.Addr().String()
	}
	if s.tcp != "" {
		if s.tcpListener, err = net.Listen("tcp", s.tcp); err != nil {
			return explain("tcp", s.tcp, err)
		}
		s.tcp = s.tcpListener.Addr().String()
	}
	if s.udp != "" {
		if s.udpConn, err = net.ListenPacket("udp", s.udp); err != nil {
			return explain("udp", s.udp, err)
		}
		s.udp = s.udpConn.LocalAddr().String()
	}
	return nil
}

// explain returns an error for a flag's address on which the server can't listen. It includes a fix
// if another program uses the port.
func explain(flag, address string, err error) error {
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("--%s %s: another program uses that port; stop it, or use another port", flag, address)
	}
	return fmt.Errorf("--%s %s: %w", flag, address, err)
}

func (s *server) closeListeners() {
	if s.httpListener != nil {
		_ = s.httpListener.Close()
	}
	if s.tcpListener != nil {
		_ = s.tcpListener.Close()
	}
	if s.udpConn != nil {
		_ = s.udpConn.Close()
	}
}

// serve answers until ctx is done or a socket fails. It then waits for open requests, for at most
// grace.
func (s *server) serve(ctx context.Context) error {
	var all sync.WaitGroup
	failed := make(chan error, 3)
	web := &http.Server{Handler: s.handler(), ReadHeaderTimeout: 10 * time.Second}
	var conns sync.WaitGroup
	cut, cutAll := context.WithCancel(context.Background())
	defer cutAll()
	if s.httpListener != nil {
		all.Go(func() {
			if err := web.Serve(s.httpListener); !errors.Is(err, http.ErrServerClosed) {
				failed <- err
			}
		})
	}
	if s.tcpListener != nil {
		all.Go(func() { failed <- s.serveTCP(cut, &conns) })
	}
	if s.udpConn != nil {
		all.Go(func() { failed <- s.serveUDP() })
	}

	var err error
	select {
	case <-ctx.Done():
	case err = <-failed:
	}
	last, cancel := context.WithTimeout(context.Background(), s.grace)
	defer cancel()
	if shutdown := web.Shutdown(last); shutdown != nil {
		_ = web.Close()
	}
	s.closeListeners()
	all.Wait() // after the accept loops have returned, conns does not grow
	context.AfterFunc(last, cutAll)
	conns.Wait()
	return err
}

func (s *server) handler() http.Handler {
	mux := http.NewServeMux()
	answer := func(w http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprintf(w, "%s %s\n", s.name, r.RemoteAddr)
	}
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) {
		s.counts.add(&s.counts.http)
		answer(w, r)
	})
	mux.HandleFunc("GET /slow", func(w http.ResponseWriter, r *http.Request) {
		ms, err := strconv.ParseUint(r.FormValue("ms"), 10, 32)
		if err != nil {
			http.Error(w, "set the delay: /slow?ms=500", http.StatusBadRequest)
			return
		}
		s.counts.add(&s.counts.http)
		select {
		case <-time.After(time.Duration(ms) * time.Millisecond):
			answer(w, r)
		case <-r.Context().Done():
		}
	})
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok\n") })
	mux.HandleFunc("GET /count", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, s.counts.text()) })
	return mux
}

// serveTCP serves TCP connections until the listener is closed. When cut is done, it closes
// connections that are still open.
func (s *server) serveTCP(cut context.Context, conns *sync.WaitGroup) error {
	for {
		conn, err := s.tcpListener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("accepting on %s: %w", s.tcp, err)
		}
		s.counts.add(&s.counts.tcp)
		conns.Go(func() {
			defer context.AfterFunc(cut, func() { _ = conn.Close() })()
			defer func() { _ = conn.Close() }()
			if _, err := fmt.Fprintf(conn, "%s %s\n", s.name, conn.RemoteAddr()); err == nil {
				_, _ = io.Copy(conn, conn)
			}
		})
	}
}

// serveUDP answers datagrams until the socket is closed.
func (s *server) serveUDP() error {
	buffer := make([]byte, 65535)
	for {
		n, client, err := s.udpConn.ReadFrom(buffer)
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("receiving on %s: %w", s.udp, err)
		}
		s.counts.add(&s.counts.udp)
		answer := append([]byte(s.name+" "), buffer[:n]...)
		_, _ = s.udpConn.WriteTo(answer[:min(len(answer), 65507)], client) // after an error, only this client lacks its answer
	}
}
