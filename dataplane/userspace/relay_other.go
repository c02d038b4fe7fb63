//go:build !unix

package userspace

import "io"

// pipes are none where the kernel can't splice.
type pipes struct{}

func newPipes(*budget) *pipes { return &pipes{} }

func (*pipes) close() {}

// mover has nothing to remember here.
type mover struct{}

// run moves bytes until the end, which is nil, or a failure.
func (p *pump) run() error {
	buf := make([]byte, 32<<10)
	for {
		n, err := p.src.Read(buf)
		if n > 0 {
			if _, err := p.dst.Write(buf[:n]); err != nil {
				return err
			}
			p.counted(n)
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
