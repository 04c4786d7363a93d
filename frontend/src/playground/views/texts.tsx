/** Generated texts. */

import { plain } from "../../lib/format";
import { CopyButton } from "../../ui/parts";

const MOST = 100_000;

export function Texts({ texts }: { texts: string[] }) {
  return (
    <>
      {texts.map((text, index) => (
        <blockquote key={index} class="written">
          <p dir="auto">{plain(text, MOST) || "(nothing)"}</p>
          <CopyButton text={text} />
        </blockquote>
      ))}
    </>
  );
}
