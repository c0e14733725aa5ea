// Many processes write notes to one file, one at a time:
//
//	go run single_writer.go write TEXT [FILE]    adds a note
//	go run single_writer.go count [FILE]         prints how many there are
//	go run single_writer.go hold SECONDS [FILE]  holds the lock while others time out
//
// They take turns with `SingleWriter` of Rust and Python and with `litelease write`, in the same queue. Copy the type Lock.
package main

import (
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"syscall"
	"time"

	_ "github.com/mattn/go-sqlite3"
)

// Lock is the write lock of a database: on a file of its own, because SQLite's locks are on the database.
type Lock struct{ database string }

// Of names the lock of a database, whichever way its path is written.
func Of(database string) (Lock, error) {
	path, err := filepath.Abs(database)
	if err == nil {
		path, err = filepath.EvalSymlinks(path)
	}
	return Lock{path}, err
}

func (lock Lock) path() string { return lock.database + ".lock" }

// Acquire waits for the lock in the queue. Unlock the file to release it; the system does so if the process dies.
func (lock Lock) Acquire(timeout time.Duration) (*os.File, error) {
	deadline := time.Now().Add(timeout)
	for {
		file, err := lock.take(deadline)
		if err != nil {
			return nil, err
		}
		if file == nil {
			return nil, fmt.Errorf("write lock timeout after %dms; holder: %s", timeout.Milliseconds(), lock.holder())
		}
		ours, _ := file.Stat()
		if there, err := os.Lstat(lock.path()); err == nil && os.SameFile(ours, there) {
			file.Truncate(0)
			fmt.Fprintf(file, "pid:%d time:%s\n", os.Getpid(), time.Now().UTC().Format("2006-01-02T15:04:05Z"))
			return file, nil
		}
		// The file was removed meanwhile: a lock on it excludes no process.
		Unlock(file)
	}
}

// Unlock releases the lock. Closing the file is not enough if a child was forked meanwhile: it has the file open, too.
func Unlock(file *os.File) {
	flock(file, syscall.LOCK_UN)
	file.Close()
}

// take locks the file, or returns nil at the deadline.
func (lock Lock) take(deadline time.Time) (*os.File, error) {
	if lock.isQueueEmpty() {
		if file, err := lock.try(); file != nil || err != nil {
			return file, err
		}
	}
	type result struct {
		file *os.File
		err  error
	}
	locked, over := make(chan result), make(chan struct{})
	defer close(over)
	// A call that waits for a lock cannot be interrupted at the deadline, so a goroutine waits.
	go func() {
		file, err := lock.queue()
		select {
		case locked <- result{file, err}:
		case <-over:
			if file != nil {
				Unlock(file)
			}
		}
	}()
	for patience := 50 * time.Millisecond; ; patience *= 2 {
		pause := time.Until(deadline)
		if pause > patience {
			pause = patience
		}
		select {
		case got := <-locked:
			return got.file, got.err
		case <-time.After(pause):
			// The first of the queue may be a stopped process, so the lock is also tried past it.
			if file, err := lock.try(); file != nil || err != nil || !time.Now().Before(deadline) {
				return file, err
			}
		}
	}
}

// queue waits for the second file. Whoever has locked that is the first of the queue, and waits for the lock.
func (lock Lock) queue() (*os.File, error) {
	// Without this pause a process that has just unlocked would queue before the next one has woken up.
	time.Sleep(200 * time.Microsecond)
	// The queue only makes it fair: without it, all wait for the lock itself.
	if head, err := lock.open(".queue"); err == nil {
		defer Unlock(head)
		flock(head, syscall.LOCK_EX)
	}
	file, err := lock.open("")
	if err != nil {
		return nil, err
	}
	return file, flock(file, syscall.LOCK_EX)
}

func (lock Lock) isQueueEmpty() bool {
	head, err := os.OpenFile(lock.path()+".queue", os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return true
	}
	defer Unlock(head)
	return flock(head, syscall.LOCK_SH|syscall.LOCK_NB) != syscall.EWOULDBLOCK
}

// try locks the file if it is free, and returns nil if not.
func (lock Lock) try() (*os.File, error) {
	file, err := lock.open("")
	if err != nil {
		return nil, err
	}
	if err = flock(file, syscall.LOCK_EX|syscall.LOCK_NB); err == nil {
		return file, nil
	}
	file.Close()
	if err == syscall.EWOULDBLOCK {
		return nil, nil
	}
	return nil, err
}

// open opens the lock file, or the one of the queue. It is created for users who may write the database: others could
// keep all writers out. A link or a FIFO at its path is refused, and never truncated.
func (lock Lock) open(ending string) (*os.File, error) {
	path, flags := lock.path()+ending, os.O_RDWR|syscall.O_NOFOLLOW|syscall.O_NONBLOCK
	file, err := os.OpenFile(path, flags, 0)
	for errors.Is(err, os.ErrNotExist) {
		var database os.FileInfo
		if database, err = os.Stat(lock.database); err != nil {
			return nil, err
		}
		owner, write := database.Sys().(*syscall.Stat_t), database.Mode()&0o222
		if file, err = os.OpenFile(path, flags|os.O_CREATE|os.O_EXCL, 0o600); err == nil {
			if os.Geteuid() == 0 {
				file.Chown(int(owner.Uid), -1)
			}
			file.Chown(-1, int(owner.Gid))
			err = file.Chmod(0o600 | write | write<<1)
		} else if errors.Is(err, os.ErrExist) {
			file, err = os.OpenFile(path, flags, 0)
		}
	}
	if err != nil {
		return nil, err
	}
	found, err := file.Stat()
	if err == nil && (!found.Mode().IsRegular() || found.Sys().(*syscall.Stat_t).Nlink > 1) {
		err = fmt.Errorf("%s cannot be a lock file: it is no ordinary file with one name", path)
	}
	if err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}

var signature = regexp.MustCompile(`^pid:(\d+) time:(\S{20})\n`)

// holder names the process that has the lock. The line in the file may be an earlier holder's, so the kernel is asked too.
func (lock Lock) holder() string {
	text, _ := os.ReadFile(lock.path())
	signed := signature.FindStringSubmatch(string(text))
	var locker string
	if found, err := os.Stat(lock.path()); err == nil {
		locks, _ := os.ReadFile("/proc/locks")
		ours := regexp.MustCompile(fmt.Sprintf(`(?m)^\d+: FLOCK .* (\d+) \S+:%d `, found.Sys().(*syscall.Stat_t).Ino))
		if line := ours.FindSubmatch(locks); line != nil {
			locker = string(line[1])
		}
	}
	switch {
	case signed != nil && (signed[1] == locker || locker == "" && isRunning(signed[1])):
		return fmt.Sprintf("pid:%s since %s; try again or check if holder process is stuck", signed[1], signed[2])
	case locker != "":
		return "unknown, for it has not signed the lock file; the system names pid " + locker + "; try again or check what that process does"
	}
	return "unknown; try again or check which process has the lock file open"
}

func isRunning(pid string) bool {
	number, err := strconv.Atoi(pid)
	return err == nil && syscall.Kill(number, 0) != syscall.ESRCH
}

func flock(file *os.File, how int) error {
	for {
		if err := syscall.Flock(int(file.Fd()), how); err != syscall.EINTR {
			return err
		}
	}
}

// write runs the work in a transaction under the lock.
func write(db *sql.DB, lock Lock, work func(*sql.Tx) error) error {
	locked, err := lock.Acquire(500 * time.Millisecond)
	if err != nil {
		return err
	}
	defer Unlock(locked)
	tx, err := db.Begin()
	if err != nil {
		return err
	}
	if err := work(tx); err != nil {
		tx.Rollback()
		return err
	}
	return tx.Commit()
}

func run(words []string) error {
	if len(words) < 1 || (words[0] != "count" && len(words) < 2) {
		return errors.New("usage: single_writer write TEXT [FILE] | count [FILE] | hold SECONDS [FILE]")
	}
	verb, rest := words[0], words[1:]
	path := "notes.sqlite3"
	if verb != "count" {
		rest = rest[1:]
	}
	if len(rest) > 0 {
		path = rest[0]
	}
	// A file that is private, if there is none. SQLite has not opened it yet: closing it later would drop its locks.
	if created, err := os.OpenFile(path, os.O_CREATE|os.O_RDONLY, 0o600); err != nil {
		return err
	} else {
		created.Close()
	}
	lock, err := Of(path)
	if err != nil {
		return err
	}
	// BEGIN IMMEDIATE, because a transaction that reads first cannot wait for another writer's commit.
	db, err := sql.Open("sqlite3", "file:"+path+"?_txlock=immediate&_busy_timeout=500&_journal_mode=WAL&_synchronous=NORMAL")
	if err != nil {
		return err
	}
	defer db.Close()
	if verb == "count" {
		var notes int
		if err := db.QueryRow("SELECT count(*) FROM notes").Scan(&notes); err != nil {
			return err
		}
		fmt.Println(notes)
		return nil
	}
	return write(db, lock, func(tx *sql.Tx) error {
		if _, err := tx.Exec("CREATE TABLE IF NOT EXISTS notes (id INTEGER PRIMARY KEY, text TEXT)"); err != nil {
			return err
		}
		if verb == "hold" {
			seconds, err := strconv.ParseFloat(words[1], 64)
			fmt.Println("holding", lock.path())
			time.Sleep(time.Duration(seconds * float64(time.Second)))
			return err
		}
		added, err := tx.Exec("INSERT INTO notes (text) VALUES (?)", words[1])
		if err != nil {
			return err
		}
		row, err := added.LastInsertId()
		fmt.Println("note", row)
		return err
	})
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "single_writer:", err)
		os.Exit(1)
	}
}
