/** Selects a view by the shape of the response, so that plug-in tasks have one as well. */

import type { ComponentChildren } from "preact";
import { deferred } from "../ui/deferred";
import type { Answer, Sent } from "./ask";
import { Raw } from "./raw";
import * as shape from "./shapes";
import { Bars } from "./views/bars";
import { Entities } from "./views/entities";
import { Texts } from "./views/texts";

const Boxes = deferred(() => import("./views/boxes"));
const Masks = deferred(() => import("./views/masks"));
const Depth = deferred(() => import("./views/depth"));
const Table = deferred(() => import("./views/table"));
const Vectors = deferred(() => import("./views/vectors"));
const Ranked = deferred(() => import("./views/ranked"));
const Captions = deferred(() => import("./views/captions"));
const Images = deferred(() => import("./views/images"));
const Sound = deferred(() => import("./views/sound"));
const VideoJob = deferred(() => import("./views/video-job"));

export function Result({ sent, answer }: { sent: Sent; answer: Answer }) {
  if (answer.kind === "bytes") {
    return answer.value.type.startsWith("image/") ? <Images blobs={[answer.value]} /> : <Sound blob={answer.value} />;
  }
  const view = answer.kind === "json" ? viewOf(sent, answer.value) : <Texts texts={[answer.value]} />;
  return (
    <>
      {view}
      {answer.kind === "json" && <Raw value={answer.value} isOpen={view === null} />}
    </>
  );
}

function first(files: Record<string, File>): File | undefined {
  return Object.values(files)[0];
}

function viewOf(sent: Sent, value: unknown): ComponentChildren {
  const file = first(sent.files);
  const text = (name: string) => (typeof sent.body[name] === "string" ? (sent.body[name] as string) : "");

  if (shape.isVideo(value)) return <VideoJob video={value} />;
  if (shape.isTranscription(value)) return <Captions answer={value} file={file} />;
  if (shape.isImages(value)) return <Images images={value.data} />;
  if (shape.isEmbeddings(value)) {
    const inputs = sent.body.input;
    const names = Array.isArray(inputs) ? inputs.map(String) : [String(inputs)];
    return (
      <Vectors named={value.data.map((one, index) => [names[index] ?? `${index}`, one.embedding])} model={sent.model} />
    );
  }
  if (shape.isRanking(value)) {
    return (
      <Ranked
        texts={listed(sent.body.documents)}
        scores={value.results.map((one) => [one.index, one.relevance_score])}
      />
    );
  }
  if (shape.isMasks(value)) return <Masks answer={value} file={file} />;
  if (shape.isDepth(value)) return <Depth answer={value} file={file} />;
  if (shape.isCells(value)) return <Table table={sent.body.table} answer={value} />;
  if (shape.isZeroShot(value)) {
    return <Bars bars={value.labels.map((label, index) => [label, value.scores[index] ?? 0])} />;
  }
  if (shape.isSpan(value)) {
    return <Entities text={text("context")} spans={[{ ...value, label: "answer" }]} />;
  }
  if (shape.isVector(value)) {
    if ("sentences" in sent.body) {
      return <Ranked texts={listed(sent.body.sentences)} scores={value.map((score, index) => [index, score])} />;
    }
    return <Vectors named={[[file?.name ?? text("inputs"), value]]} model={sent.model} />;
  }
  if (!Array.isArray(value)) return null;
  if (shape.areTokens(value)) {
    return (
      <Entities
        text={text("inputs")}
        spans={value.map((one) => ({ ...one, label: one.entity_group ?? one.entity ?? "" }))}
      />
    );
  }
  if (shape.areDetections(value)) return <Boxes found={value} file={file} />;
  if (shape.areFills(value)) {
    return <Bars bars={value.map((one) => [one.token_str, one.score, one.sequence])} />;
  }
  if (shape.areAnswers(value)) {
    return sent.body.context ? (
      <Entities text={text("context")} spans={value.map((one) => ({ ...one, label: "answer" }))} />
    ) : (
      <Bars bars={value.map((one) => [one.answer, one.score])} />
    );
  }
  if (shape.areLabels(value)) return <Bars bars={value.map((one) => [one.label, one.score])} />;
  if (shape.areTexts(value)) return <Texts texts={value.map((one) => shape.textOf(one) ?? "")} />;
  if (value.length === 0) {
    return file && "threshold" in sent.body ? <Boxes found={[]} file={file} /> : <p>No results.</p>;
  }
  return null;
}

function listed(value: unknown): string[] {
  if (!Array.isArray(value)) return [];
  return value.map((one) => (typeof one === "string" ? one : ((one as { text?: string }).text ?? JSON.stringify(one))));
}
