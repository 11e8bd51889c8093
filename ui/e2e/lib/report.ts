// Says what became of each test in the words of Rust's test harness, which `cargo xtask` counts.

import type { FullConfig, FullResult, Reporter, Suite, TestCase, TestResult } from '@playwright/test/reporter';

export default class Report implements Reporter {
  #passed = 0;
  #failed: { name: string; said: string }[] = [];
  #skipped = 0;

  onBegin(_: FullConfig, suite: Suite) {
    console.log(`\nrunning ${suite.allTests().length} tests`);
  }

  onTestEnd(test: TestCase, result: TestResult) {
    const name = named(test);
    const took = `${(result.duration / 1000).toFixed(1)} s`;
    if (result.status === 'passed') {
      this.#passed += 1;
      console.log(`test ${name} ... ok (${took})`);
    } else if (result.status === 'skipped') {
      this.#skipped += 1;
      const why = test.annotations.find(({ type }) => type === 'skip')?.description ?? 'not said why';
      console.log(`test ${name} ... ignored, ${why}`);
    } else {
      const said = result.errors.map((error) => error.stack ?? error.message ?? String(error.value)).join('\n');
      this.#failed.push({ name, said: `${said}${result.stdout.join('')}${result.stderr.join('')}` });
      console.log(`test ${name} ... FAILED (${result.status}, ${took})`);
    }
  }

  /** What belongs to no test: a file that cannot be read, say. */
  onError(error: { message?: string; stack?: string }) {
    this.#failed.push({ name: 'the run itself', said: error.stack ?? error.message ?? 'not said why' });
    console.log('test the run itself ... FAILED');
  }

  onEnd(result: FullResult) {
    if (this.#failed.length > 0) {
      console.log('\nfailures:\n');
      for (const { name, said } of this.#failed) console.log(`---- ${name} ----\n${plain(said)}\n`);
      console.log(`failures:\n${this.#failed.map(({ name }) => `    ${name}`).join('\n')}`);
    }
    const word = result.status === 'passed' ? 'ok' : 'FAILED';
    const counts = `${this.#passed} passed; ${this.#failed.length} failed; ${this.#skipped} ignored`;
    console.log(`\ntest result: ${word}. ${counts}; finished in ${(result.duration / 1000).toFixed(1)}s\n`);
  }

  printsToStdio() {
    return true;
  }
}

function named(test: TestCase): string {
  const [, , file = '', ...titles] = test.titlePath();
  return [file.replace(/\.e2e\.ts$/, ''), ...titles].join(': ');
}

/** Without the colours that the tests' library puts into what it says. */
function plain(text: string): string {
  return text.replace(/\x1b\[[0-9;]*m/g, '');
}
