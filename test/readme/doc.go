// Package readme runs the shell blocks of README.md in a copy of the tree, in their order, checks
// its TOML, and tries with the real keepalived what docs/gateway.md says of examples/keepalived.
//
// The word behind "sh" in a block's opening line says what it needs: nothing (runs anywhere),
// foreground (it goes on until Ctrl-C; what follows runs beside it), root (installs; DESTDIR is
// set, so that nothing of this machine changes), service (root, and a network of its own with vipd
// in it), systemd (not run here but by test/systemd, in a machine of its own).
package readme
